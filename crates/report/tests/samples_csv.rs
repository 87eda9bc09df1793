//! Tables of samples: exact text, and what is left after a resume.

use std::fs;

use report::Error;
use report::samples_csv::SamplesCsv;

const COLUMNS: [&str; 3] = ["time", "watts", "bytes"];

fn row(time: f64, watts: Option<f64>) -> Vec<Option<f64>> {
    vec![Some(time), watts, Some(150_754_820_096.0)]
}

#[test]
fn numbers_keep_all_digits_and_missing_values_are_empty() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("telemetry.csv");
    let mut csv = SamplesCsv::create(&path, &COLUMNS).unwrap();
    csv.append(&[row(1_764_547_200.125, Some(312.5)), row(1_764_547_201.25, None)]).unwrap();
    csv.append(&[]).unwrap();
    let text = "time,watts,bytes\n1764547200.125,312.5,150754820096\n1764547201.25,,150754820096\n";
    assert_eq!(fs::read_to_string(&path).unwrap(), text);

    let wrong = csv.append(&[row(1.0, None), vec![None]]);
    assert!(matches!(wrong, Err(Error::ExtraCount { expected: 3, got: 1, .. })));
    assert_eq!(fs::read_to_string(&path).unwrap(), text, "refused rows leave no trace");
}

#[test]
fn resume_keeps_whole_rows_and_drops_a_torn_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("telemetry.csv");
    let whole = "time,watts,bytes\n1,2,3\n";
    for torn in ["", "4", "4,5,6"] {
        fs::write(&path, format!("{whole}{torn}")).unwrap();
        SamplesCsv::resume(&path, &COLUMNS).unwrap().append(&[row(7.0, None)]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{whole}7,,150754820096\n"), "{torn:?}");
    }
}

#[test]
fn resume_without_a_whole_header_starts_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("telemetry.csv");
    for torn in [None, Some(""), Some("time,wat")] {
        let _ = fs::remove_file(&path);
        if let Some(torn) = torn {
            fs::write(&path, torn).unwrap();
        }
        SamplesCsv::resume(&path, &COLUMNS).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "time,watts,bytes\n", "{torn:?}");
    }
}

#[test]
fn resume_refuses_other_columns_and_leaves_the_file_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("telemetry.csv");
    fs::write(&path, "time,watts\n1,2\n3").unwrap();
    assert!(matches!(SamplesCsv::resume(&path, &COLUMNS), Err(Error::ColumnMismatch { .. })));
    assert_eq!(fs::read_to_string(&path).unwrap(), "time,watts\n1,2\n3");
    assert!(matches!(SamplesCsv::create(&path, &["a,b"]), Err(Error::BadColumnName { .. })));
}
