//! Label rows and files that broke other trainers.

mod common;

use std::path::Path;

use common::{ROW, Set, jpeg};
use data::DataError;
use data::labels::{MAX_LABEL_BYTES, ParsedLabels, parse_labels};

fn parse(text: &[u8]) -> ParsedLabels {
    parse_labels(Path::new("x.txt"), text, &["person".into(), "traffic light".into()]).unwrap()
}

#[test]
fn a_bad_row_costs_the_row_and_is_named_with_its_line() {
    for (bad, words) in [
        ("-1 .5 .5 .2 .4", "negative"),
        ("0 -0.2 .5 .2 .4", "negative"),
        ("0 320 240 50 50", "pixels"),
        ("0 .5 .5 .2", "5 columns"),
        ("0 .5 .5 .2 .4 .9", "confidence"),
        ("1.7 .5 .5 .2 .4", "whole number"),
        ("dog .5 .5 .2 .4", "person"),
        ("0 .1 .1 .2 .2 .3 .3 .4", "pairs"),
        ("0 nan .5 .2 .4", "finite"),
        ("1e30 .5 .5 .2 .4", "too large"),
    ] {
        let parsed = parse(format!("{ROW}{bad}\n1 .3 .3 .1 .1\n").as_bytes());
        assert_eq!((parsed.labels.len(), parsed.bad_rows), (2, 1), "{bad}");
        assert_eq!(parsed.problems.len(), 1, "{bad}");
        assert_eq!(parsed.problems[0].line, Some(2), "{bad}");
        assert!(parsed.problems[0].reason.contains(words), "{bad}: {}", parsed.problems[0]);
    }
}

#[test]
fn values_slightly_outside_are_clipped_and_named() {
    let parsed = parse(b"0 1.0021 .5 .2 .4\n0 .5 -0.001 .2 .4\n0 .95 .5 .2 .4\n");
    assert_eq!(parsed.labels.iter().map(|l| (l.cx, l.cy)).collect::<Vec<_>>(), [(1.0, 0.5), (0.5, 0.0), (0.95, 0.5)]);
    assert_eq!((parsed.clipped, parsed.problems.len(), parsed.bad_rows), (2, 2, 0));
}

#[test]
fn names_in_place_of_ids_are_looked_up() {
    let parsed = parse(b"traffic light .5 .5 .2 .4\nperson .5 .5 .2 .4\n");
    assert_eq!(parsed.labels.iter().map(|l| l.class).collect::<Vec<_>>(), [1, 0]);
    assert_eq!(parsed.problems.len(), 2);
}

#[test]
fn text_oddities_are_read() {
    let plain = parse(b"0 .5 .5 .2 .4\n1 .1 .1 .1 .1\n").labels;
    for text in [
        "\u{feff}0 .5 .5 .2 .4\r\n1 .1 .1 .1 .1\r\n",
        "0 .5 .5 .2 .4\r1 .1 .1 .1 .1\r",
        "# note\n\n  \t \n0\t.5\t5e-1\t.2\t.4 # a person\n1.0 .1 .1 .1 .1",
        "0 .5 .5 .2 .4\n1 .1 .1 .1 .1\n\0\0\0\0",
    ] {
        let parsed = parse(text.as_bytes());
        assert_eq!(parsed.labels, plain, "{text:?}");
        assert_eq!(parsed.problems, [], "{text:?}");
    }
    assert_eq!(parse(b"   \n\n").labels, []);
    assert!(!parse(b"   \n\n").is_unusable());
}

#[test]
fn utf16_and_huge_files_are_explained() {
    let utf16: Vec<u8> = "0 .5 .5 .2 .4\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let marked: Vec<u8> = [0xFF, 0xFE].into_iter().chain(utf16.iter().copied()).collect();
    for bytes in [utf16, marked] {
        let problem = parse_labels(Path::new("x.txt"), &bytes, &[]).unwrap_err();
        assert!(problem.reason.contains("UTF-16"));
    }
    let huge = vec![b' '; MAX_LABEL_BYTES as usize + 1];
    assert!(parse_labels(Path::new("x.txt"), &huge, &[]).unwrap_err().reason.contains("too many"));
    let set = Set::with_one();
    set.write("images/u.jpg", jpeg(50, 50));
    set.write("labels/u.txt", b"\xFF\xFE0\0");
    let report = set.scan().unwrap().report;
    assert_eq!(report.dropped, 1);
    assert!(report.problems[0].file.ends_with("u.txt"));
}

#[test]
fn hostile_text_never_panics_and_problems_stay_few() {
    let noise: Vec<u8> = (0u32..60_000).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let _ = parse_labels(Path::new("x.txt"), &noise, &[]);
    let many = "0 2 2 2 2\n".repeat(5000);
    let parsed = parse(many.as_bytes());
    assert_eq!(parsed.bad_rows, 5000);
    assert_eq!(parsed.problems.len(), 4);
    assert_eq!(parsed.problems[3].reason, "and 4997 more rows of this file");
    let long = format!("0 .5 .5 .2 {}\n", "x".repeat(100_000));
    assert!(parse(long.as_bytes()).problems[0].reason.len() < 200);
}

#[test]
fn a_binary_label_file_costs_one_line_of_the_problem_list() {
    let mut noise: Vec<u8> = (0u32..4000).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    noise[500] = 0;
    let problem = parse_labels(Path::new("x.txt"), &noise, &[]).unwrap_err();
    assert_eq!((problem.line, problem.reason.as_str()), (None, "not text"));
    let set = Set::with_one();
    set.write("images/b.jpg", jpeg(50, 50));
    set.write("labels/b.txt", &noise);
    let report = set.scan().unwrap().report;
    assert_eq!((report.problems.len(), report.dropped), (1, 1), "{:?}", report.problems);
    assert!(report.problems[0].reason.starts_with("not text"));
}

#[test]
fn every_row_problem_says_what_happened_to_the_row() {
    for (row, happened) in [
        ("0 .5 .5 0 .2", "a box without area; the row is dropped"),
        ("0 .1 .1 .3 .1 .2 .1", "a box without area; the row is dropped"),
        ("0 .5 .5 .2", "the row is dropped"),
        ("0 1.01 -.01 .2 .2", "2 values (1.01, ...) lie slightly outside 0..1; clipped"),
        ("0 .5 .5 .2 .4", "an earlier line; the row is dropped"),
    ] {
        let parsed = parse(format!("{ROW}{row}\n").as_bytes());
        assert_eq!(parsed.problems.len(), 1, "{row}");
        assert!(parsed.problems[0].reason.contains(happened), "{row}: {}", parsed.problems[0]);
        assert_eq!(parsed.labels.len(), 1 + usize::from(!happened.contains("dropped")), "{row}");
    }
}

#[test]
fn box_and_polygon_rows_of_one_file_stay_what_they_are() {
    let parsed = parse(b"0 .5 .5 .2 .4\n0 .1 .1 .3 .1 .3 .5\n");
    assert_eq!(parsed.labels[0].cx, 0.5);
    assert_eq!(parsed.segments[0], None);
    assert_eq!(parsed.segments[1].as_ref().unwrap().len(), 3);
    assert!((parsed.labels[1].cx - 0.2).abs() < 1e-6 && (parsed.labels[1].h - 0.4).abs() < 1e-6);
}

#[test]
fn duplicates_are_removed_counted_and_the_order_kept() {
    let parsed = parse(b"1 .5 .5 .2 .2\n0 .3 .3 .1 .1\n1 .5 .5 .2 .2\n0 .1 .1 .3 .1 .3 .5\n0 .3 .1 .3 .5 .1 .1\n");
    assert_eq!(parsed.duplicates, 2);
    assert_eq!(parsed.labels.iter().map(|l| l.class).collect::<Vec<_>>(), [1, 0, 0]);
    assert_eq!(parsed.lines, [1, 2, 4]);
}

#[test]
fn class_beyond_the_names_is_an_error_with_file_and_line() {
    let set = Set::with_one();
    set.write("images/z.jpg", jpeg(50, 50));
    set.write("labels/z.txt", "\n0 .5 .5 .2 .2\n2 .4 .4 .1 .1\n1000000000 .2 .2 .1 .1\n");
    let error = set.scan().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("z.txt:3: class 2") && text.contains("2 classes") && text.contains("1 more"), "{text}");
    assert!(error.hint().is_some());
    let merged = set.scan_with(|o| o.single_cls = true).unwrap();
    assert!(merged.samples.iter().flat_map(|s| &s.labels).all(|l| l.class == 0));
}

#[test]
fn no_labels_at_all_says_where_they_were_looked_for() {
    let set = Set::new();
    set.write("images/a.jpg", jpeg(50, 50));
    let error = set.scan().unwrap_err();
    assert!(matches!(error, DataError::NoLabels { .. }));
    let text = error.to_string();
    assert!(text.contains("images/a.jpg") && text.contains("labels/a.txt"), "{text}");
    let val = set.scan_with(|o| o.for_training = false).unwrap();
    assert_eq!((val.report.backgrounds, val.report.without_file), (1, 1));
}

#[test]
fn only_backgrounds_cannot_be_trained_on() {
    let set = Set::new();
    for i in 0..4 {
        set.write(&format!("images/{i}.jpg"), jpeg(50, 50));
        set.write(&format!("labels/{i}.txt"), "");
    }
    assert!(matches!(set.scan().unwrap_err(), DataError::OnlyBackgrounds { images: 4, .. }));
    assert_eq!(set.scan_with(|o| o.for_training = false).unwrap().report.backgrounds, 4);
}

#[test]
fn images_with_few_labels_can_be_left_out() {
    let set = Set::with_one();
    set.write("images/two.jpg", jpeg(50, 50));
    set.write("labels/two.txt", "0 .5 .5 .2 .2\n1 .3 .3 .1 .1\n");
    let scanned = set.scan_with(|o| o.min_items = 2).unwrap();
    assert_eq!((scanned.samples.len(), scanned.report.below_min_items), (1, 1));
}

#[test]
fn labels_beside_images_are_used_with_one_counted_warning() {
    let set = Set::new();
    for i in 0..3 {
        set.write(&format!("images/{i}.jpg"), jpeg(50, 50));
        set.write(&format!("images/{i}.txt"), ROW);
    }
    let report = set.scan().unwrap().report;
    assert_eq!((report.labelled, report.neighbours, report.problems.len()), (3, 3, 1));
    assert!(report.problems[0].reason.starts_with("3 images"));
}

#[test]
fn two_images_with_one_label_file_are_named() {
    let set = Set::with_one();
    set.write("images/good.png", common::encoded(&common::picture(30, 30).into(), image::ImageFormat::Png));
    let report = set.scan().unwrap().report;
    assert!(report.problems.iter().any(|p| p.file.ends_with("good.txt") && p.reason.contains("both")));
}
