//! A description as text, for models that no file describes.

use crate::yaml::{Arg, Description, Row};
use graph::ops::Activation;
use std::fmt::Write;

impl Description {
    /// The text that [`Description::parse`] reads back. All rows stand below `backbone`: the parser joins the lists.
    pub fn to_yaml(&self, heading: &str) -> String {
        let mut text = format!("# {heading}\n# A row is [from, repeats, block, arguments]; -1 is the row before.\n\n");
        let Self { nc, depth, width, anchors, channels, .. } = self;
        let _ = write!(
            text,
            "nc: {nc}\ndepth_multiple: {depth:?}\nwidth_multiple: {width:?}\nanchors: {anchors}\nch: {channels}\n"
        );
        match self.activation {
            Activation::Silu => {}
            Activation::Relu => text.push_str("activation: nn.ReLU()\n"),
            Activation::Identity => text.push_str("activation: nn.Identity()\n"),
            Activation::LeakyRelu(slope) => {
                let _ = writeln!(text, "activation: nn.LeakyReLU({slope:?})");
            }
        }
        text.push_str("\nbackbone:\n");
        let (last, rest) =
            self.rows.split_last().map_or((&[][..], &[][..]), |(_, rest)| (&self.rows[rest.len()..], rest));
        rest.iter().for_each(|row| write_row(&mut text, row));
        text.push_str("\nhead:\n");
        last.iter().for_each(|row| write_row(&mut text, row));
        text
    }
}

fn write_row(text: &mut String, row: &Row) {
    let from = match row.from[..] {
        [one] => one.to_string(),
        ref many => format!("{many:?}"),
    };
    let args = row.args.iter().map(arg).collect::<Vec<_>>().join(", ");
    let _ = writeln!(text, "  - [{from}, {}, {}, [{args}]]", row.repeats, row.module);
}

fn arg(value: &Arg) -> String {
    match value {
        Arg::Null(()) => "null".to_owned(),
        Arg::Bool(v) => v.to_string(),
        Arg::Int(v) => v.to_string(),
        Arg::Float(v) => format!("{v:?}"),
        // Quoted as in JSON, which YAML contains.
        Arg::Text(v) => serde_json::to_string(v).unwrap_or_default(),
        Arg::List(v) => format!("[{}]", v.iter().map(arg).collect::<Vec<_>>().join(", ")),
    }
}
