//! Label texts against what the reference makes of them, with every deliberate deviation listed.

use std::path::Path;

use data::labels::parse_labels;

/// Texts where we mean to differ: (name, rows we take, words one of our problems must contain).
const DEVIATIONS: &[(&str, &[[f32; 5]], &str)] = &[
    // Blank lines, comments and a byte order mark are no reason to lose an image.
    ("line of blanks inside", &[[0., 0.5, 0.5, 0.2, 0.2], [1., 0.4, 0.4, 0.1, 0.1]], ""),
    ("comment", &[[0., 0.5, 0.5, 0.2, 0.2]], ""),
    ("BOM", &[[0., 0.5, 0.5, 0.2, 0.2]], ""),
    // A bad row costs the row.
    ("mixed 5 and 6", &[[0., 0.5, 0.5, 0.2, 0.2]], "6 columns"),
    // Slightly outside is clipped and named.
    ("above one", &[[0., 1.0, 0.5, 0.2, 0.2]], "clipped"),
    // A box without area can neither be learned nor found.
    ("zero size", &[], "without area"),
    // A class must be whole.
    ("float class", &[], "not a whole number"),
    // Duplicates go, the order stays.
    ("duplicate rows", &[[1., 0.5, 0.5, 0.2, 0.2], [0., 0.3, 0.3, 0.1, 0.1]], "an earlier line; the row is dropped"),
    // Rows are judged one by one: the box row stays a box.
    ("polygon and box", &[[0., 0.3, 0.35, 0.4, 0.5], [1., 0.5, 0.5, 0.2, 0.2]], ""),
    // Python reads 0.2_0 as a number; nobody writes that on purpose.
    ("underscore digit", &[], "not a number"),
];

#[test]
fn label_texts_are_read_as_the_reference_does_or_deliberately_not() {
    let cases = testkit::json("pieces/labels.json");
    let mut deviations_met = 0;
    for case in cases.as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let parsed = parse_labels(Path::new("a.txt"), case["text"].as_str().unwrap().as_bytes(), &[]).unwrap();
        let got: Vec<[f32; 5]> = parsed.labels.iter().map(|l| [l.class as f32, l.cx, l.cy, l.w, l.h]).collect();
        assert_eq!(parsed.segments.len(), got.len());
        if let Some((_, rows, words)) = DEVIATIONS.iter().find(|(n, ..)| *n == name) {
            deviations_met += 1;
            assert_eq!(got.len(), rows.len(), "{name}: {got:?}");
            for (g, w) in got.iter().zip(*rows) {
                testkit::assert_close(name, &g.map(f64::from), &w.map(f64::from), 1e-6, 0.0);
            }
            assert!(
                words.is_empty() || parsed.problems.iter().any(|p| p.reason.contains(words)),
                "{name}: {:?}",
                parsed.problems
            );
            assert_eq!(words.is_empty(), parsed.problems.is_empty(), "{name}: {:?}", parsed.problems);
            continue;
        }
        if !case["accepted"].as_bool().unwrap() {
            assert!(parsed.is_unusable(), "{name} should drop the image: {got:?}");
            let words = match case["message_class"].as_str().unwrap() {
                "columns" => "columns",
                "negative" if name == "nan" => "finite",
                "negative" => "negative",
                "out of bounds" if name == "inf" => "finite",
                "out of bounds" => "above 1",
                "not a number" if name == "comma" => "commas",
                "not a number" => "number",
                "odd polygon" => "pairs",
                other => panic!("{name}: no expectation for {other}"),
            };
            let problem = &parsed.problems[0];
            assert!(problem.reason.contains(words), "{name}: {problem}");
            assert_eq!(problem.line, Some(1), "{name}");
            continue;
        }
        let number = |v: &serde_json::Value| v.as_f64().unwrap() as f32;
        let want: Vec<[f32; 5]> =
            case["rows"].as_array().unwrap().iter().map(|r| [0, 1, 2, 3, 4].map(|k| number(&r[k]))).collect();
        assert_eq!(got, want, "{name}");
        let polygons: Vec<Vec<[f32; 2]>> = case["segments"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| p.as_array().unwrap().iter().map(|q| [number(&q[0]), number(&q[1])]).collect())
            .collect();
        assert_eq!(parsed.segments.into_iter().flatten().collect::<Vec<_>>(), polygons, "{name}");
        let duplicates = usize::from(case["message_class"].as_str() == Some("duplicates removed"));
        assert_eq!(parsed.duplicates, duplicates, "{name}");
    }
    assert_eq!(deviations_met, DEVIATIONS.len());
}
