//! Boxes, labels, text, mosaics and picture files.

use std::fs;

use report::Error;
use report::draw::{BoxStyle, Canvas, LabelledBox, label_text};
use report::font::{drawable, fit, text_width};
use report::jpeg::{JPEG_QUALITY, save_jpeg, save_picture, save_png};
use report::mosaic::{MosaicOptions, Tile, TileBox, draw_mosaic, save_mosaic};
use report::palette::{COLOURS, Rgb, class_colour, contrast, text_colour};

const GREY: Rgb = [128, 128, 128];

fn names() -> Vec<String> {
    ["cat", "dog"].map(String::from).to_vec()
}

/// Columns and rows `[left, top, right, bottom]` (inclusive) in which `canvas` differs from `background`.
fn changed(canvas: &Canvas, background: Rgb) -> Option<[usize; 4]> {
    let points = (0..canvas.height()).flat_map(|y| (0..canvas.width()).map(move |x| (x, y)));
    points.filter(|&(x, y)| canvas.pixel(x, y) != Some(background)).fold(None, |area, (x, y)| {
        let [l, t, r, b] = area.unwrap_or([x, y, x, y]);
        Some([l.min(x), t.min(y), r.max(x), b.max(y)])
    })
}

fn count(canvas: &Canvas, colour: Rgb) -> usize {
    canvas.pixels().as_chunks::<3>().0.iter().filter(|p| **p == colour).count()
}

#[test]
fn a_frame_is_as_wide_as_asked_and_hollow() {
    let mut canvas = Canvas::filled(20, 16, GREY).unwrap();
    canvas.rectangle([4.4, 3.6, 12.0, 10.0], 2, [255, 0, 0]);
    assert_eq!(changed(&canvas, GREY), Some([3, 3, 12, 10]));
    // Outer 10x8, inner 6x4.
    assert_eq!(count(&canvas, [255, 0, 0]), 80 - 24);
    assert_eq!(canvas.pixel(7, 7), Some(GREY));
}

#[test]
fn boxes_without_area_show_and_swapped_corners_do_not_matter() {
    let mut point = Canvas::filled(20, 20, GREY).unwrap();
    point.rectangle([10.0, 10.0, 10.0, 10.0], 3, [255, 0, 0]);
    assert_eq!(changed(&point, GREY), Some([9, 9, 11, 11]));

    let (mut straight, mut swapped) = (point.clone(), point);
    straight.rectangle([2.0, 3.0, 15.0, 18.0], 2, [0, 0, 255]);
    swapped.rectangle([15.0, 18.0, 2.0, 3.0], 2, [0, 0, 255]);
    assert_eq!(straight, swapped);
}

#[test]
fn boxes_that_are_not_numbers_or_far_away_do_no_harm() {
    let mut canvas = Canvas::filled(60, 40, GREY).unwrap();
    let style = BoxStyle::for_picture(60, 40);
    let draw = |canvas: &mut Canvas, xyxy, label: &str| {
        canvas.boxes(&[LabelledBox { xyxy, class: usize::MAX, label: label.to_owned() }], style);
    };
    draw(&mut canvas, [f32::NAN, 0.0, 10.0, 10.0], "a");
    draw(&mut canvas, [f32::INFINITY, f32::INFINITY, f32::INFINITY, f32::INFINITY], "");
    draw(&mut canvas, [1e30, 1e30, 2e30, 2e30], "");
    draw(&mut canvas, [f32::MIN, f32::MIN, f32::MAX, f32::MAX], "");
    assert_eq!(changed(&canvas, GREY), None);
    canvas.boxes(&[], BoxStyle { line_width: usize::MAX, text_size: f32::NAN });
    canvas.rectangle([1.0, 1.0, 5.0, 5.0], 0, [0; 3]);
    assert_eq!(changed(&canvas, GREY), None);
    canvas.rectangle([10.0, 10.0, 20.0, 20.0], usize::MAX, [1, 2, 3]);
    assert_eq!(count(&canvas, [1, 2, 3]), 60 * 40);

    let mut empty = Canvas::filled(0, 0, GREY).unwrap();
    draw(&mut empty, [0.0, 0.0, 1.0, 1.0], "a");
    empty.text("a", 0, 0, f32::INFINITY, GREY);
}

#[test]
fn a_label_is_whole_wherever_its_box_is() {
    let style = BoxStyle::for_picture(200, 100);
    let colour = class_colour(0);
    let draw = |xyxy| {
        let mut canvas = Canvas::filled(200, 100, GREY).unwrap();
        canvas.boxes(&[LabelledBox { xyxy, class: 0, label: "cat 0.87".to_owned() }], style);
        let mut frame = Canvas::filled(200, 100, GREY).unwrap();
        frame.rectangle(xyxy, style.line_width, colour);
        // Picture covered by the label, and pixels of its letters.
        (
            count(&canvas, GREY) as i64 - count(&frame, GREY) as i64,
            200 * 100 - count(&canvas, GREY) - count(&canvas, colour),
        )
    };
    let (_, letters) = draw([80.0, 40.0, 190.0, 90.0]);
    assert!(letters > 20, "letters are drawn: {letters} pixels");
    for xyxy in [
        [-50.0, -50.0, 20.0, 20.0],
        [180.0, -50.0, 300.0, 20.0],
        [195.0, 95.0, 300.0, 300.0],
        [-30.0, 95.0, 5.0, 130.0],
        [0.0, 0.0, 200.0, 100.0],
        [500.0, 500.0, 600.0, 600.0],
    ] {
        let (covered, here) = draw(xyxy);
        assert_eq!(here, letters, "every letter of the label at {xyxy:?}");
        assert!(covered < 0, "{xyxy:?}");
    }
}

#[test]
fn labels_wider_than_the_picture_are_cut() {
    let mut canvas = Canvas::filled(50, 40, GREY).unwrap();
    canvas.boxes(
        &[LabelledBox { xyxy: [5.0, 25.0, 30.0, 38.0], class: 1, label: "a very long class name".to_owned() }],
        BoxStyle { line_width: 2, text_size: 14.0 },
    );
    assert!(count(&canvas, class_colour(1)) > 100);
    let short = fit("a very long class name", 14.0, 44.0);
    assert!(short.ends_with('…') && text_width(&short, 14.0) <= 44.0, "{short}");
    assert_eq!(fit("short", 14.0, 100.0), "short");
    assert_eq!(fit("wide", 14.0, 2.0), "");
}

#[test]
fn any_name_can_be_drawn() {
    assert_eq!(drawable("ünïcode ŁÓDŹ Đặng Ωμέγα Привет €"), "ünïcode ŁÓDŹ Đặng Ωμέγα Привет €");
    assert_eq!(drawable("a\u{308}e\u{301}"), "äé", "decomposed names of macOS");
    assert_eq!(drawable("缺陷0001.jpg"), "QueXian0001.jpg");
    assert_eq!(drawable("지단.jpg"), "JiDan.jpg");
    assert_eq!(drawable("سلام"), "slm");
    assert_eq!(drawable("❤\u{fe0f}"), drawable("❤"));
    assert_eq!((drawable("ا"), drawable("")), ("\\u{627}".to_owned(), String::new()));
    assert_eq!(drawable("a\nb\tc"), "a b c");
    assert_eq!(drawable("\u{0}\u{7f}\u{10ffff}\u{e000}"), "\\u{0}\\u{7f}\\u{10ffff}\\u{e000}");
    let mut canvas = Canvas::filled(100, 30, GREY).unwrap();
    // One of each block, surely with characters that no font has.
    for start in (0..=0x10ffff).step_by(251) {
        if let Some(c) = char::from_u32(start) {
            let text = drawable(&c.to_string());
            assert!(text.chars().all(|c| text_width(&c.to_string(), 14.0) > 0.0), "{c:?} gives {text:?}");
            canvas.text(&text, 0, 0, 14.0, [0; 3]);
        }
    }
}

#[test]
fn colours_of_classes_are_distinct_and_texts_on_them_readable() {
    for a in 0..COLOURS {
        let colour = class_colour(a);
        assert_eq!(colour, class_colour(a + COLOURS));
        let ratio = contrast(colour, text_colour(colour));
        assert!(ratio >= 4.5, "text on class {a} has contrast {ratio}");
        for b in 0..a {
            let apart: i32 = (0..3).map(|c| (i32::from(colour[c]) - i32::from(class_colour(b)[c])).pow(2)).sum();
            assert!(apart >= 60 * 60, "classes {a} and {b}");
        }
    }
}

#[test]
fn labels_name_the_class_or_its_number() {
    assert_eq!(label_text(&names(), 1, None, 2), "dog");
    assert_eq!(label_text(&names(), 0, Some(0.876), 2), "cat 0.88");
    assert_eq!(label_text(&names(), 7, Some(0.876), 1), "7 0.9");
}

#[test]
fn pixels_of_another_size_are_refused() {
    let wrong = Canvas::from_rgb(4, 3, vec![0; 35]).unwrap_err();
    assert_eq!(wrong.to_string(), "a picture of 4x3 needs 36 bytes of RGB, got 35");
    assert!(Canvas::from_rgb(usize::MAX, 2, vec![]).is_err());
    assert!(Canvas::filled(usize::MAX, 2, GREY).is_err());
}

fn tile(pixels: &[u8], width: usize, height: usize) -> Tile<'_> {
    let boxes = vec![TileBox {
        xyxy: [0.1 * width as f32, 0.2 * height as f32, 0.9 * width as f32, 0.8 * height as f32],
        class: 0,
        confidence: None,
    }];
    Tile { pixels, width, height, caption: "picture.jpg", boxes }
}

#[test]
fn a_mosaic_stays_within_its_limits_and_is_about_square() {
    let pixels = vec![90; 640 * 480 * 3];
    let size = |n: usize| {
        let tiles = vec![tile(&pixels, 640, 480); n];
        let mosaic = draw_mosaic(&tiles, &names(), MosaicOptions::default()).unwrap();
        (mosaic.width(), mosaic.height())
    };
    assert_eq!(size(16), size(40), "what is above 16 is left out");
    for n in [1, 2, 3, 5, 9, 16] {
        let (width, height) = size(n);
        assert!(width <= 1920 && height <= 1920, "{n}: {width}x{height}");
    }
    let (wide, low) = size(2);
    assert!(wide == 2 * 642 && low < 540, "two pictures side by side, not enlarged: {wide}x{low}");
    assert!(size(16).0 > 1900, "sixteen use the room");
}

#[test]
fn a_mosaic_takes_pictures_of_odd_sizes() {
    let pixels = vec![90; 100_000 * 3];
    let shapes = [(1, 100_000), (100_000, 1), (1, 1), (0, 5), (5, 0), (17, 33)];
    for &(w, h) in &shapes {
        let mosaic = draw_mosaic(&[tile(&pixels[..w * h * 3], w, h)], &names(), MosaicOptions::default()).unwrap();
        assert!(mosaic.width() <= 1920 && mosaic.height() <= 1920, "{w}x{h}");
    }
    let all: Vec<Tile> = shapes.iter().map(|&(w, h)| tile(&pixels[..w * h * 3], w, h)).collect();
    draw_mosaic(&all, &[], MosaicOptions::default()).unwrap();
    draw_mosaic(&all, &[], MosaicOptions { max_side: 0, max_tiles: 0, min_confidence: f32::NAN }).unwrap();
    assert!(matches!(draw_mosaic(&[], &[], MosaicOptions::default()), Err(Error::EmptyMosaic)));
    assert!(matches!(
        draw_mosaic(&[tile(&pixels, 5, 5)], &[], MosaicOptions::default()),
        Err(Error::PixelCount { .. })
    ));
}

#[test]
fn a_mosaic_draws_labels_and_confident_predictions_at_their_places() {
    let pixels = vec![90; 300 * 300 * 3];
    let with = |confidence| {
        let mut tile = tile(&pixels, 300, 300);
        tile.boxes[0].confidence = confidence;
        draw_mosaic(&[tile], &names(), MosaicOptions::default()).unwrap()
    };
    let (label, sure, unsure) = (with(None), with(Some(0.9)), with(Some(0.1)));
    assert_eq!(count(&unsure, class_colour(0)), 0);
    assert!(count(&sure, class_colour(0)) > count(&label, class_colour(0)), "the confidence makes the label longer");
    // The box of one not enlarged picture, below the caption: left edge at 30, right edge at 270.
    let middle = label.height() - 150;
    assert_eq!([29, 30, 269, 270].map(|x| label.pixel(x, middle)), [Some(class_colour(0)); 4]);
    assert_eq!(label.pixel(150, middle), Some([90; 3]));
}

#[test]
fn saved_pictures_are_what_was_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let mut canvas = Canvas::filled(64, 48, GREY).unwrap();
    canvas.fill(10, 10, 40, 40, [200, 30, 60]);
    for name in ["a.png", "a.bmp", "a.webp", "a.tif", "a.TIFF"] {
        let path = dir.path().join(name);
        save_picture(&path, &canvas).unwrap();
        assert_eq!(image::open(&path).unwrap().to_rgb8().as_raw(), canvas.pixels(), "{name}");
    }
    for name in ["a.jpg", "a.JPEG"] {
        let path = dir.path().join(name);
        save_picture(&path, &canvas).unwrap();
        let read = image::open(&path).unwrap().to_rgb8();
        let worst = read.as_raw().iter().zip(canvas.pixels()).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(worst < Some(40), "{name}: {worst:?}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 7, "no temporary files are left");
}

#[test]
fn pictures_that_cannot_be_saved_say_why() {
    let dir = tempfile::tempdir().unwrap();
    let canvas = Canvas::filled(2, 2, GREY).unwrap();
    for name in ["a.gif", "a"] {
        assert!(matches!(save_picture(&dir.path().join(name), &canvas), Err(Error::UnknownPictureFormat { .. })));
    }
    let wide = Canvas::filled(65_536, 1, GREY).unwrap();
    let path = dir.path().join("wide.jpg");
    assert!(matches!(save_jpeg(&path, &wide, JPEG_QUALITY), Err(Error::PictureSize { limit: 65_535, .. })));
    save_png(&path, &wide).unwrap();
    let empty = Canvas::filled(0, 2, GREY).unwrap();
    assert!(matches!(save_png(&path, &empty), Err(Error::PictureSize { .. })));
}

#[test]
fn a_mosaic_is_saved_as_jpeg() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("val_batch0_labels.jpg");
    let pixels = vec![90; 50 * 40 * 3];
    save_mosaic(&path, &[tile(&pixels, 50, 40)], &names(), MosaicOptions::default()).unwrap();
    assert!(fs::read(&path).unwrap().starts_with(&[0xff, 0xd8, 0xff]));
}
