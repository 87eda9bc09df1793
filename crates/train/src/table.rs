//! The table of a validation.

use crate::evaluate::Evaluation;
use report::tables::{ValidationRow, validation_header, validation_row};

/// Rows per class are left out above this number unless asked for.
const MANY_CLASSES: usize = 50;

/// Header, the row of all classes, and with `classes` a row for each where there are several.
pub(crate) fn table(evaluation: &Evaluation, classes: bool) -> Vec<String> {
    let m = &evaluation.metrics;
    let mut lines = vec![
        validation_header(),
        validation_row(&ValidationRow {
            class: "all",
            images: evaluation.images,
            instances: evaluation.instances,
            precision: m.precision,
            recall: m.recall,
            map50: m.map50,
            map50_95: m.map50_95,
        }),
    ];
    if classes && evaluation.classes.len() > 1 && evaluation.classes.len() < MANY_CLASSES {
        lines.extend(class_rows(evaluation));
    }
    lines
}

/// A row for each class that the set holds.
pub(crate) fn class_rows(evaluation: &Evaluation) -> Vec<String> {
    let row = |c: &crate::ClassMetrics| {
        validation_row(&ValidationRow {
            class: &c.name,
            images: c.images,
            instances: c.instances,
            precision: c.precision,
            recall: c.recall,
            map50: c.map50,
            map50_95: c.map50_95,
        })
    };
    evaluation.classes.iter().map(row).collect()
}
