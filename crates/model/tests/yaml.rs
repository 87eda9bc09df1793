//! The grammar of model descriptions: what is accepted, and how errors point at the row.

use graph::ops::Activation;
use graph::{DType, GraphBuilder, Op, Shape};
use model::{BuildOptions, Model, ModelError, Result, Source};

const HEAD: &str = "  - [[2, 3, 4], 1, DDetect, [nc]]\n";

fn parse(text: &str) -> Result<Model> {
    Model::from_yaml("test", Source::Text("test.yaml".into()), text.to_owned(), None)
}

/// Five convolutions down to strides 8, 16, 32, with a row of the test's own choice after them.
fn with_row(keys: &str, row: &str) -> Result<Model> {
    parse(&format!(
        "nc: 4\n{keys}backbone:\n  - [-1, 1, Conv, [8, 3, 2]]\n  - [-1, 1, Conv, [16, 3, 2]]\n  \
         - [-1, 1, Conv, [16, 3, 2]]\n  - [-1, 1, Conv, [24, 3, 2]]\n  - [-1, 1, Conv, [32, 3, 2]]\nhead:\n{row}{HEAD}"
    ))
}

fn message(result: Result<Model>) -> String {
    result.expect_err("the description is wrong").to_string()
}

/// What an error must say about a row that follows the five convolutions.
fn row_error(row: &str, parts: &[&str]) {
    let error = message(with_row("", &format!("  - {row}\n")));
    assert!(error.starts_with("test.yaml:9: row 5 ("), "{error}");
    for part in parts {
        assert!(error.contains(part), "{row}: {error}");
    }
}

#[test]
fn errors_name_file_line_row_and_what_was_expected() {
    row_error("[-1, 1, Convolution, [8]]", &["Convolution", "hint", "RepNCSPELAN4"]);
    row_error("[-1, 1, Conv, []]", &["output channels", "missing"]);
    row_error("[-1, 1, Conv, [wide]]", &["'wide'"]);
    row_error("[-1, 1, Conv, [8, 3, 1, 1, 3]]", &["groups"]);
    row_error("[-1, 1, Conv, [8, 3, 1, 1, 1, 1, 1]]", &["at most 5"]);
    row_error("[[3, 4], 1, Concat, [1]]", &["strides 16 and 32"]);
    row_error("[[4, 4], 1, Concat, [2]]", &["dimension"]);
    row_error("[[4, 4], 1, Conv, [8]]", &["one input"]);
    row_error("[7, 1, Conv, [8]]", &["reads row 7"]);
    row_error("[5, 1, Conv, [8]]", &["reads row 5"]);
    row_error("[-6, 1, Conv, [8]]", &["reads row -6"]);
    row_error("[[], 1, Concat, [1]]", &["0 inputs"]);
    row_error("[-1, 1, nn.Upsample, [None, 2, bilinear]]", &["bilinear", "nearest"]);
    row_error("[-1, 1, nn.Upsample, [20, 2, nearest]]", &["fixed size"]);
    row_error("[-1, 1, RepNCSPELAN4, [32, 15, 8, 1]]", &["c3", "even"]);
    row_error("[[4, -1], 1, CBFuse, [[0]]]", &["no CBLinear"]);
    row_error("[-1, 1, RepNBottleneck, [40]]", &["32", "40"]);
    row_error("[-1, 0, Conv, [8]]", &["0 repeats"]);
    row_error("[[2, 3, 4], 2, DDetect, [nc]]", &["not repeated"]);
    row_error("[[2, 3, 4], 1, DualDDetect, [nc]]", &["3 inputs"]);
    row_error("[[2, 3, 4], 1, DDetect, [9]]", &["9 classes", "hint"]);
}

#[test]
fn a_list_output_is_read_by_cbfuse_only() {
    let list = "  - [-1, 1, CBLinear, [[8, 32]]]\n";
    let fails = |row: &str, part: &str| {
        let error = message(with_row("", &format!("{list}  - {row}\n")));
        assert!(error.contains(part) && error.contains("row 6"), "{error}");
    };
    fails("[-1, 1, Conv, [8]]", "CBFuse");
    fails("[[-1, 4], 1, CBFuse, [[2]]]", "2 entries");
    fails("[[-1, 4], 1, CBFuse, [[0]]]", "8 wide");
    fails("[[-1, 4], 1, CBFuse, [[0, 1]]]", "2 entries from 1 lists");
    with_row("", &format!("{list}  - [[-1, 4], 1, CBFuse, [[1]]]\n")).unwrap();
}

#[test]
fn the_head_is_the_last_row_and_the_only_one() {
    let error = message(with_row("", HEAD));
    assert!(error.contains("row 6") && error.contains("last row"), "{error}");
    let error = message(parse("nc: 1\nbackbone:\n  - [-1, 1, Conv, [8]]\nhead: []\n"));
    assert!(error.contains("head"), "{error}");
}

#[test]
fn broken_files_say_where() {
    let error = message(parse("nc: 4\nbackbone:\n  - [-1, 1, Conv, [8, 3\nhead: []\n"));
    assert!(error.starts_with("test.yaml: ") && error.contains("line"), "{error}");
    let error = message(parse("nc: 4\nwidht_multiple: 1.0\nbackbone: []\nhead: []\n"));
    assert!(error.contains("widht_multiple") && error.contains("width_multiple"), "{error}");
    let error = message(parse("nc: 4\nbackbone:\n  - [-1, 1, Conv]\nhead: []\n"));
    assert!(error.contains("line 3") || error.contains(":3:"), "{error}");
    assert!(matches!(parse(""), Err(ModelError::Yaml { .. })));
    assert!(matches!(parse("nc: 4\nbackbone: []\nhead: []\n"), Err(ModelError::Yaml { .. })));
    for keys in
        ["nc: 0", "nc: -3", "nc: 100000", "depth_multiple: 0\nnc: 1", "width_multiple: .nan\nnc: 1", "ch: 0\nnc: 1"]
    {
        let text = format!("{keys}\nbackbone:\n  - [-1, 1, Conv, [8]]\nhead: []\n");
        assert!(matches!(parse(&text), Err(ModelError::Yaml { .. })), "{keys}");
    }
    assert!(message(parse("backbone:\n  - [-1, 1, Conv, [8]]\nhead: []\n")).contains("nc"));
}

#[test]
fn hostile_sizes_are_refused_before_anything_is_built() {
    row_error("[-1, 1, Conv, [100000000]]", &["whole number"]);
    row_error("[-1, 1000, Conv, [32]]", &["1000 repeats"]);
    row_error("[-1, 1, RepNCSPELAN4, [32, 32, 16, 100000]]", &["4096 blocks"]);
    row_error("[-1, 1, Conv, [8, 3, 100]]", &["stride"]);
    row_error("[-1, 1, Conv, [8, 3, 3]]", &["power of two"]);
    row_error("[-1, 128, Conv, [32, 3, 2]]", &["stride 2048"]);
    row_error("[-9223372036854775808, 1, Conv, [32]]", &["reads row"]);
    let rows = "  - [-1, 120, RepNCSP, [32, 120]]\n".repeat(20);
    assert!(message(with_row("", &rows)).contains("4096 blocks"));
    let rows = "  - [-1, 1, Silence, []]\n".repeat(600);
    assert!(message(with_row("", &rows)).contains("512"));
    // Each level repeats the one before nine times: 9^9 numbers from 400 bytes.
    let mut bomb = String::from("nc: 1\nanchors:\n  - &a0 [1, 1]\n");
    for level in 1..=9 {
        let alias = vec![format!("*a{}", level - 1); 9].join(", ");
        bomb.push_str(&format!("  - &a{level} [{alias}]\n"));
    }
    let error = message(parse(&format!("{bomb}backbone: []\nhead: []\n")));
    assert!(error.starts_with("test.yaml: line") && error.contains("budget"), "{error}");
    assert!(message(parse(&"#".repeat(2 << 20))).contains("longer than"));
    let wide = with_row("width_multiple: 64.0\n", "  - [-1, 1, Conv, [60000]]\n");
    assert!(message(wide).contains("after scaling"));
    let text = format!("nc: 1\nbackbone: {}\nhead: []\n", "[".repeat(100_000));
    assert!(parse(&text).is_err());
}

#[test]
fn width_scales_the_first_argument_of_conv_like_rows_only() {
    let rows = "  - [-1, 1, RepNCSPELAN4, [90, 32, 16, 1]]\n  - [-1, 1, CBLinear, [[10, 20]]]\n  \
                - [-2, 1, SPPELAN, [50, 12]]\n";
    let model = with_row("width_multiple: 0.5\n", rows).unwrap();
    let arguments: Vec<&str> = model.layers.iter().map(|l| l.arguments.as_str()).collect();
    assert_eq!(arguments[0], "[3, 8, 3, 2]");
    // 90 / 2 = 45 goes up to 48, 50 / 2 = 25 to 32; hidden widths stay.
    assert_eq!(arguments[5], "[16, 48, 32, 16, 1]");
    assert_eq!(arguments[6], "[48, [10, 20]]");
    assert_eq!(arguments[7], "[48, 32, 12]");
}

#[test]
fn a_width_equal_to_the_anchor_heads_outputs_is_not_rounded() {
    let model = with_row("", "  - [-1, 1, Conv, [27]]\n  - [-1, 1, Conv, [28]]\n").unwrap();
    assert_eq!(model.layers[5].channels, 3 * (4 + 5));
    assert_eq!(model.layers[6].channels, 32);
}

#[test]
fn depth_scales_repeats_above_one_and_names_them_by_number() {
    let model = with_row("depth_multiple: 0.5\n", "  - [-1, 5, Conv, [32]]\n  - [-1, 1, Conv, [32]]\n").unwrap();
    // 2.5 rounds to the even 2.
    assert_eq!((model.layers[5].repeats, model.layers[6].repeats), (2, 1));
    let names: Vec<String> = model.training_state().unwrap().into_iter().map(|e| e.name).collect();
    for name in ["model.5.0.conv.weight", "model.5.1.bn.weight", "model.6.conv.weight"] {
        assert!(names.iter().any(|n| n == name), "{name}");
    }
    assert!(!names.iter().any(|n| n.starts_with("model.5.2.")));
    let model = with_row("depth_multiple: 0.1\n", "  - [-1, 2, RepNCSPELAN4, [32, 32, 16, 2]]\n").unwrap();
    assert_eq!(model.layers[5].repeats, 1);
    assert!(model.layers[5].arguments.ends_with("2]"), "{}", model.layers[5].arguments);
}

#[test]
fn the_activation_key_changes_every_block() {
    let acts = |keys: &str| {
        let model = with_row(keys, "").unwrap();
        let mut b = GraphBuilder::new();
        let image = b.input("image", Shape::new(1, 32, 32, 3), DType::F32);
        model.build(&mut b, image, BuildOptions::default()).unwrap();
        let graph = b.finish();
        let found = graph.nodes().iter().filter_map(|n| if let Op::Activate(a) = &n.op { Some(a.act) } else { None });
        found.collect::<Vec<_>>()
    };
    assert_eq!(acts(""), [Activation::Silu; 17]);
    assert_eq!(acts("activation: nn.ReLU()\n"), [Activation::Relu; 17]);
    assert_eq!(acts("activation: nn.LeakyReLU(0.1)\n"), [Activation::LeakyRelu(0.1); 17]);
    let error = message(with_row("activation: os.system('x')\n", ""));
    assert!(error.contains("activation") && error.contains("hint"), "{error}");
}

#[test]
fn a_class_count_given_by_the_caller_replaces_the_files() {
    let text = with_row("", "").unwrap().yaml;
    let model = Model::from_yaml("test", Source::Text("test.yaml".into()), text.clone(), Some(11)).unwrap();
    assert_eq!((model.nc, model.yaml), (11, text));
    let last = model.layers.last().unwrap().arguments.clone();
    assert_eq!(last, "[11, [16, 24, 32]]");
}

#[test]
fn grids_that_do_not_match_their_stride_are_refused_at_build() {
    // Kernel 2 with padding 1 keeps one cell too many.
    let rows = "  - [4, 1, Conv, [32, 2, 1]]\n  - [[2, 3, 5], 1, DDetect, [nc]]\n";
    let text = with_row("", "").unwrap().yaml.replace(HEAD, rows);
    let error = parse(&text).unwrap().info(64, 64).unwrap_err().to_string();
    assert!(error.contains("layer 5") && error.contains("3x3") && error.contains("2x2"), "{error}");
}
