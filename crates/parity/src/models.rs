//! Models and pictures by the fixture rule.

use model::{Model, NamedTensors, Source};

/// A model named as in the fixtures, such as `yolov9-t-nc80`.
pub fn load(case: &str) -> Model {
    let (name, nc) = case.rsplit_once("-nc").expect("cases end in -ncN");
    let nc = nc.parse().expect("a number of classes");
    let yaml = testkit::fixture(&format!("models/{name}.yaml"));
    match std::fs::read_to_string(&yaml) {
        Ok(text) => Model::from_yaml(name, Source::Text(name.into()), text, Some(nc)),
        Err(_) => Model::load(name, Some(nc)),
    }
    .unwrap_or_else(|e| panic!("{case}: {e}"))
}

/// Every tensor of a model by the fill rule.
pub fn filled(model: &Model, case: &str) -> NamedTensors {
    let gains = testkit::json(&format!("models/{case}.gains.json"));
    let last = model.layers.len() - 1;
    let class_bias = |name: &str| {
        let rest = name.strip_prefix(&format!("model.{last}.cv"))?.strip_suffix(".2.bias")?;
        let (tower, level) = rest.split_once('.')?;
        let stride = 8.0 * f64::from(1 << level.parse::<u32>().ok()?);
        ["3", "5"].contains(&tower).then(|| (5.0 / model.nc as f64 / (640.0 / stride).powi(2)).ln())
    };
    let mut tensors = NamedTensors::new();
    for entry in model.training_state().expect("a state") {
        let values = testkit::fill(&entry.name, &entry.dims, gains[&entry.name].as_f64(), class_bias);
        tensors.insert(entry.name, entry.dims, values).expect("as declared");
    }
    tensors
}

/// Pictures of the rule as u8 NHWC.
pub fn pictures(name: &str, batch: usize, h: usize, w: usize) -> Vec<u8> {
    let planes = testkit::pictures(name, batch, h, w);
    let mut out = Vec::with_capacity(planes.len());
    for b in 0..batch {
        for pixel in 0..h * w {
            out.extend((0..3).map(|c| planes[(b * 3 + c) * h * w + pixel]));
        }
    }
    out
}
