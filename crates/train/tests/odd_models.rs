//! Model descriptions that no zoo has: they train, validate and detect all the same.

mod common;

use common::{Memory, data_set, tiny};
use std::path::Path;
use train::{DetectOptions, TrainOptions, ValOptions, run};

/// Trains two steps, validates from the file and detects.
fn passes(folder: &Path, name: &str, yaml: &str) {
    let data = data_set(folder, 6, 2);
    let mut options = TrainOptions { epochs: 1, ..tiny(folder, &data, name) };
    let cfg = folder.join(format!("{name}.yaml"));
    std::fs::write(&cfg, yaml).unwrap();
    options.cfg = Some(cfg);
    let mut memory = Memory::default();
    let summary = run(&options, &mut memory).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(memory.batches, 2, "{name}");
    let last = summary.last.unwrap();
    let loaded = model::weights::load(&last).unwrap();
    let model = model::fit(&loaded, None, "last").unwrap().model;
    let start = model::init(&model, 0).unwrap();
    for entry in model.training_state().unwrap().iter().filter(|e| e.kind == model::StateKind::Param) {
        let raw = loaded.tensors.get(&format!("resume/weights/{}", entry.name)).unwrap();
        assert!(raw.values.iter().all(|v| v.is_finite()), "{name}: {} is not finite", entry.name);
        // Weights in front of a batch norm may end with no gradient for a channel, never for all of them.
        if entry.dims.len() == 4 {
            assert_ne!(raw, start.get(&entry.name).unwrap(), "{name}: {} has not moved", entry.name);
        }
    }
    let val = ValOptions {
        data: data.clone(),
        weights: last.clone(),
        imgsz: 64,
        batch_size: 2,
        noplots: true,
        project: folder.join("val"),
        name: name.to_owned(),
        ..ValOptions::default()
    };
    let validated = train::validate(&val, &mut Memory::default()).unwrap();
    assert!(validated.metrics.losses.iter().all(|loss| loss.is_finite()), "{name}: {:?}", validated.metrics);
    let detect = DetectOptions {
        weights: last,
        source: folder.join("images/val").display().to_string(),
        imgsz: vec![64],
        nosave: true,
        project: folder.join("detect"),
        name: name.to_owned(),
        ..DetectOptions::default()
    };
    assert_eq!(train::detect(&detect, &mut Memory::default()).unwrap().images.len(), 2, "{name}");
}

/// Five rows down to strides 8, 16 and 32, with the test's own rows after them.
fn with(keys: &str, rows: &str, head: &str) -> String {
    format!(
        "nc: 2\n{keys}\nbackbone:\n  - [-1, 1, Conv, [8, 3, 2]]\n  - [-1, 1, Conv, [12, 3, 2]]\n  \
         - [-1, 1, Conv, [20, 3, 2]]\n  - [-1, 1, Conv, [20, 3, 2]]\n  - [-1, 1, Conv, [28, 3, 2]]\nhead:\n{rows}  \
         - [{head}, 1, DDetect, [nc]]\n"
    )
}

#[test]
fn widths_that_are_no_multiple_of_eight_train() {
    let folder = tempfile::tempdir().unwrap();
    // Hidden widths are taken as they stand: 10 and 5 here, halves of them inside.
    let rows =
        "  - [2, 1, RepNCSPELAN4, [20, 10, 5, 1]]\n  - [3, 1, ELAN1, [20, 14, 7]]\n  - [4, 1, SPPELAN, [28, 9]]\n";
    passes(folder.path(), "hidden", &with("", rows, "[5, 6, 7]"));
    for width in ["0.3", "0.7", "1.3"] {
        passes(folder.path(), &format!("width{width}"), &with(&format!("width_multiple: {width}"), rows, "[5, 6, 7]"));
    }
}

#[test]
fn depth_multiples_repeat_blocks_more_or_less_often() {
    let folder = tempfile::tempdir().unwrap();
    let rows = "  - [2, 3, Conv, [20, 3, 1]]\n  - [3, 2, RepNCSP, [20, 3]]\n  - [4, 1, RepNCSPELAN4, [28, 12, 6, 3]]\n";
    for depth in ["0.33", "1.67"] {
        passes(folder.path(), &format!("depth{depth}"), &with(&format!("depth_multiple: {depth}"), rows, "[5, 6, 7]"));
    }
}

#[test]
fn rows_of_single_blocks_and_other_activations_train() {
    let folder = tempfile::tempdir().unwrap();
    // 21 = 3 (2 classes + 5) is the one width that is not rounded up to a multiple of 8.
    let rows = "  - [2, 1, RepConvN, [20, 3, 1]]\n  - [-1, 2, RepNBottleneck, [20]]\n  - [3, 1, RepConvN, [24, 3]]\n  \
                - [4, 1, Conv, [21, 1, 1]]\n  - [4, 1, AConv, [16]]\n  - [-1, 1, nn.Upsample, [None, 2, nearest]]\n  \
                - [[-1, 8], 1, Concat, [1]]\n";
    for (name, activation) in [("relu", "nn.ReLU()"), ("leaky", "nn.LeakyReLU(0.1)"), ("silu", "nn.SiLU()")] {
        let keys = format!("activation: {activation}");
        passes(folder.path(), name, &with(&keys, rows, "[6, 7, 11]"));
    }
}
