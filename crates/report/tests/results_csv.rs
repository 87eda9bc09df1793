//! results.csv: exact text of header and rows, and what is left after a resume.

use std::fs;

use report::Error;
use report::results_csv::{EpochResults, ResultsCsv, read_results};

fn results(epoch: usize) -> EpochResults {
    EpochResults {
        epoch,
        train_losses: [1.234567, 0.000012345678, 123456.789],
        precision: 0.5,
        recall: 1.0,
        map50: 0.123456,
        map50_95: 0.0,
        val_losses: [2.0, f64::NAN, f64::INFINITY],
        learning_rates: [0.01, 0.00033333333, 0.1],
        extra: vec![],
    }
}

const HEADER: &str = "               epoch,      train/box_loss,      train/cls_loss,      train/dfl_loss,   metrics/precision,      metrics/recall,     metrics/mAP_0.5,metrics/mAP_0.5:0.95,        val/box_loss,        val/cls_loss,        val/dfl_loss,               x/lr0,               x/lr1,               x/lr2";
// Written by Python: ",".join("%20.5g" % v for v in values).
const ROW_3: &str = "                   3,              1.2346,          1.2346e-05,          1.2346e+05,                 0.5,                   1,             0.12346,                   0,                   2,                 nan,                 inf,                0.01,          0.00033333,                 0.1";

#[test]
fn header_and_row_have_the_standard_columns_and_widths() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("results.csv");
    let mut csv = ResultsCsv::create(&path, &[]).unwrap();
    csv.append(&results(3)).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("{HEADER}\n{ROW_3}\n"));
}

#[test]
fn additional_columns_follow_the_standard_ones() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("results.csv");
    let mut csv = ResultsCsv::create(&path, &["time/epoch_s"]).unwrap();
    csv.append(&EpochResults { extra: vec![12.5], ..results(3) }).unwrap();
    let expected = format!("{HEADER},        time/epoch_s\n{ROW_3},                12.5\n");
    assert_eq!(fs::read_to_string(&path).unwrap(), expected);

    let wrong = csv.append(&results(4));
    assert!(matches!(wrong, Err(Error::ExtraCount { expected: 1, got: 0, .. })));
    assert_eq!(fs::read_to_string(&path).unwrap(), expected, "a refused row leaves no trace");
}

#[test]
fn resume_drops_the_rows_of_epochs_that_will_run_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("results.csv");
    let mut csv = ResultsCsv::create(&path, &[]).unwrap();
    for epoch in 0..6 {
        csv.append(&results(epoch)).unwrap();
    }
    let mut csv = ResultsCsv::resume(&path, &[], 4).unwrap();
    csv.append(&results(4)).unwrap();
    let table = read_results(&path).unwrap();
    let epochs: Vec<f64> = table.rows.iter().map(|row| row[0]).collect();
    assert_eq!(epochs, [0.0, 1.0, 2.0, 3.0, 4.0]);
    assert_eq!(table.columns[7], "metrics/mAP_0.5:0.95");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
}

#[test]
fn resume_drops_a_row_that_a_killed_run_left_half_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("results.csv");
    // The second form is the treacherous one: all columns are there, but the last value lost its digits.
    for torn in [ROW_3[..100].to_owned(), ROW_3[..ROW_3.len() - 2].to_owned()] {
        fs::write(&path, format!("{HEADER}\n{}\n{torn}", ROW_3.replacen('3', "0", 1))).unwrap();
        ResultsCsv::resume(&path, &[], 100).unwrap().append(&results(3)).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("{HEADER}\n{}\n{ROW_3}\n", ROW_3.replacen('3', "0", 1)));
    }
}

#[test]
fn resume_without_a_file_starts_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("results.csv");
    ResultsCsv::resume(&path, &[], 5).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("{HEADER}\n"));
}

#[test]
fn resume_keeps_the_columns_of_both_parts_of_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("results.csv");
    let with = |epoch, extra: &[f64]| EpochResults { extra: extra.to_vec(), ..results(epoch) };
    ResultsCsv::create(&path, &[]).unwrap().append(&results(3)).unwrap();
    ResultsCsv::resume(&path, &["a", "b"], 4).unwrap().append(&with(4, &[1.0, 2.0])).unwrap();
    // Other columns in another order, one of them known; and none at all.
    ResultsCsv::resume(&path, &["c", "a"], 5).unwrap().append(&with(5, &[3.0, 4.0])).unwrap();
    let before = fs::read_to_string(&path).unwrap();
    ResultsCsv::resume(&path, &[], 6).unwrap().append(&results(6)).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.starts_with(&before), "where no column is new, the rows before stay as they are");
    let cells: Vec<Vec<&str>> =
        text.lines().map(|line| line.split(',').map(str::trim).collect::<Vec<_>>().split_off(14)).collect();
    let nan = "nan";
    assert_eq!(cells[0], ["a", "b", "c"]);
    assert_eq!(cells[1..], [[nan, nan, nan], ["1", "2", nan], ["4", nan, "3"], [nan, nan, nan]]);
    assert!(text.lines().nth(1).unwrap().starts_with(ROW_3));
    let width = |line: &str| line.chars().count();
    assert!(text.lines().all(|line| width(line) == 17 * 20 + 16));
}

#[test]
fn resume_refuses_other_columns_and_bad_rows_and_leaves_the_file_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("results.csv");
    fs::write(&path, "epoch,loss\n0,1\n").unwrap();
    assert!(matches!(ResultsCsv::resume(&path, &[], 1), Err(Error::ColumnMismatch { .. })));
    assert_eq!(fs::read_to_string(&path).unwrap(), "epoch,loss\n0,1\n");

    let text = format!("{HEADER}\n{}\n{ROW_3}\n", ROW_3.replace("0.5", "abc"));
    fs::write(&path, &text).unwrap();
    let message = ResultsCsv::resume(&path, &[], 1).unwrap_err().to_string();
    assert!(message.ends_with("results.csv:2: \"abc\" is not a number"), "{message}");
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
}

#[test]
fn column_names_that_would_break_the_header_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("results.csv");
    for name in ["a,b", "", "a\nb"] {
        assert!(matches!(ResultsCsv::create(&path, &[name]), Err(Error::BadColumnName { .. })), "{name:?}");
    }
    assert!(!path.exists());
}

#[test]
fn large_epoch_numbers_keep_all_digits() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("results.csv");
    let mut csv = ResultsCsv::create(&path, &[]).unwrap();
    csv.append(&results(123_456)).unwrap();
    assert_eq!(read_results(&path).unwrap().rows[0][0], 123_456.0);
}
