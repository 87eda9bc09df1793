//! Image files that broke other trainers.

mod common;

use std::path::Path;

use common::{Set, cmyk_jpeg, contents, encoded, exif, jpeg, jpeg_with_exif, picture};
use data::decode::{ImageLimits, decode, probe};
use image::{DynamicImage, ImageEncoder, ImageFormat};

fn upright(bytes: &[u8]) -> data::Picture {
    let limits = ImageLimits::default();
    let picture = decode(Path::new("x.jpg"), bytes, &limits).unwrap();
    let header = probe(Path::new("x.jpg"), bytes, &limits).unwrap();
    assert_eq!((header.width, header.height), (picture.width, picture.height));
    picture
}

fn reason_for(bytes: &[u8]) -> String {
    let set = Set::with_one();
    set.write("images/bad.jpg", bytes);
    let scanned = set.scan().unwrap();
    assert_eq!((scanned.samples.len(), scanned.report.dropped), (1, 1), "{:?}", scanned.report.problems);
    let problem = scanned.report.problems.iter().find(|p| p.file.ends_with("bad.jpg")).expect("the file is named");
    problem.reason.clone()
}

#[test]
fn truncated_jpegs_are_found_by_the_scan() {
    let whole = jpeg(100, 40);
    for share in [0.3, 0.5, 0.8, 0.95] {
        let cut = &whole[..(whole.len() as f64 * share) as usize];
        assert!(reason_for(cut).contains("damaged JPEG"), "{share}");
        let mut glued = cut.to_vec();
        glued.extend([0xFF, 0xD9]);
        assert!(reason_for(&glued).contains("damaged JPEG"), "{share} with an end marker");
    }
    // Only the end marker is missing: every pixel is there.
    let set = Set::with_one();
    set.write("images/open.jpg", &whole[..whole.len() - 2]);
    assert_eq!(set.scan().unwrap().report.dropped, 0);
}

#[test]
fn bytes_after_the_end_of_a_jpeg_are_accepted() {
    let mut bytes = jpeg(100, 40);
    let clean = upright(&bytes);
    bytes.extend([0, 0]);
    assert_eq!(upright(&bytes), clean);
    bytes.extend(b"camera maker's notes \xFF\xD8\xFF\xD9");
    assert_eq!(upright(&bytes), clean);
}

#[test]
fn user_files_are_unchanged_after_a_scan() {
    let set = Set::with_one();
    let mut trailing = jpeg(64, 64);
    trailing.extend([0, 0]);
    set.write("images/trailing.jpg", trailing);
    set.write("labels/trailing.txt", "0 1.002 0.5 0.2 0.2\n0 1.002 0.5 0.2 0.2\n");
    set.write("images/cut.jpg", &jpeg(64, 64)[..300]);
    let before = contents(set.dir.path());
    set.scan().unwrap();
    assert_eq!(contents(set.dir.path()), before);
}

#[test]
fn empty_and_html_files_are_named() {
    assert!(reason_for(b"").contains("empty"));
    assert!(reason_for(b"<html>404").contains("web page"));
    assert!(reason_for(&[7; 500]).contains("not an image"));
}

#[test]
fn content_decides_and_not_the_suffix() {
    let gif = b"GIF89a\x10\0\x10\0\x80\0\0\0\0\0\xFF\xFF\xFF,\0\0\0\0\x10\0\x10\0\0\x02\x0e\x84\x8f\xa9\xcb\xed\x0f\xa3\x9c\xb4\xda\x8b\xb3>\x05\0;";
    assert!(reason_for(gif).contains("Gif"));
    let png = encoded(&DynamicImage::ImageRgb8(picture(100, 40)), ImageFormat::Png);
    assert_eq!(upright(&png).data, picture(100, 40).into_raw());
}

#[test]
fn exif_orientations_give_an_upright_picture() {
    // Where the red quarter of a 100x40 picture ends up: in the right half? in the lower half?
    let table = [(1, false, false), (2, true, false), (3, true, true), (4, false, true)];
    let turned = [(5, false, false), (6, true, false), (7, true, true), (8, false, true)];
    for (orientation, right, low) in table.into_iter().chain(turned) {
        let p = upright(&jpeg_with_exif(&picture(100, 40), Some(exif(orientation))));
        let want = if orientation >= 5 { (40, 100) } else { (100, 40) };
        assert_eq!((p.width, p.height), want, "orientation {orientation}");
        let x = if right { p.width * 3 / 4 } else { p.width / 4 };
        let y = if low { p.height * 3 / 4 } else { p.height / 4 };
        let [r, g, b] = p.at(x as usize, y as usize);
        assert!(r > 220 && g < 40 && b < 40, "orientation {orientation}: red expected at {x},{y}, found {r} {g} {b}");
    }
}

#[test]
fn exif_orientation_counts_in_png_too() {
    let mut bytes = Vec::new();
    let mut encoder = image::codecs::png::PngEncoder::new(&mut bytes);
    encoder.set_exif_metadata(exif(6)).unwrap();
    let rgb = picture(100, 40);
    encoder.write_image(rgb.as_raw(), 100, 40, image::ExtendedColorType::Rgb8).unwrap();
    let p = upright(&bytes);
    assert_eq!((p.width, p.height), (40, 100));
}

#[test]
fn alpha_is_dropped_and_grey_becomes_three_channels() {
    let clear_red = image::RgbaImage::from_pixel(20, 20, image::Rgba([200, 10, 20, 0]));
    let png = encoded(&DynamicImage::ImageRgba8(clear_red), ImageFormat::Png);
    assert_eq!(upright(&png).at(5, 5), [200, 10, 20]);
    let grey_alpha = image::GrayAlphaImage::from_pixel(20, 20, image::LumaA([90, 3]));
    let png = encoded(&DynamicImage::ImageLumaA8(grey_alpha), ImageFormat::Png);
    assert_eq!(upright(&png).at(5, 5), [90; 3]);
    let grey16 = image::ImageBuffer::from_pixel(20, 20, image::Luma([0x8000u16]));
    for format in [ImageFormat::Png, ImageFormat::Tiff] {
        let bytes = encoded(&DynamicImage::ImageLuma16(grey16.clone()), format);
        assert_eq!(upright(&bytes).at(5, 5), [128; 3], "{format:?}");
    }
}

#[test]
fn palette_and_one_bit_pngs_become_three_channels() {
    // 16x16, written by hand; rows are stored without compression.
    let png = |depth: u8, colour: u8, extra: &[(&[u8; 4], &[u8])], row: &[u8]| {
        let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
        let mut chunk = |name: &[u8; 4], body: &[u8]| {
            let mut crc = !0u32;
            for &b in name.iter().chain(body) {
                crc ^= u32::from(b);
                for _ in 0..8 {
                    crc = if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 };
                }
            }
            out.extend((body.len() as u32).to_be_bytes());
            out.extend(name);
            out.extend(body);
            out.extend((!crc).to_be_bytes());
        };
        chunk(b"IHDR", &[0, 0, 0, 16, 0, 0, 0, 16, depth, colour, 0, 0, 0]);
        for (name, body) in extra {
            chunk(name, body);
        }
        let mut raw = Vec::new();
        for _ in 0..16 {
            raw.push(0);
            raw.extend(row);
        }
        let mut z = vec![0x78, 0x01, 1];
        z.extend((raw.len() as u16).to_le_bytes());
        z.extend((!(raw.len() as u16)).to_le_bytes());
        let (mut a, mut b) = (1u32, 0u32);
        for &v in &raw {
            a = (a + u32::from(v)) % 65521;
            b = (b + a) % 65521;
        }
        z.extend(raw);
        z.extend(((b << 16) | a).to_be_bytes());
        chunk(b"IDAT", &z);
        chunk(b"IEND", &[]);
        out
    };
    let one_bit = upright(&png(1, 0, &[], &[0x0F, 0x0F]));
    assert_eq!((one_bit.at(0, 0), one_bit.at(4, 0)), ([0; 3], [255; 3]));
    let palette: &[u8] = &[200, 10, 20, 1, 2, 3];
    let indexed = upright(&png(8, 3, &[(b"PLTE", palette), (b"tRNS", &[0])], &[0, 1].repeat(8)));
    assert_eq!((indexed.at(0, 3), indexed.at(1, 3)), ([200, 10, 20], [1, 2, 3]));
}

#[test]
fn cmyk_jpeg_red_is_red() {
    // Cyan 0, magenta and yellow full, black 0; Adobe stores the complement.
    let [r, g, b] = upright(&cmyk_jpeg([255, 0, 0, 255])).at(8, 8);
    assert!(r > 250 && g < 5 && b < 5, "{r} {g} {b}");
}

#[test]
fn float_tiff_is_refused_by_name() {
    let float = image::ImageBuffer::from_pixel(20, 20, image::Rgb([0.5f32, 0.25, 1.0]));
    let reason = reason_for(&encoded(&DynamicImage::ImageRgb32F(float), ImageFormat::Tiff));
    assert!(reason.contains("32-bit float TIFF; convert it to 8 bits"), "{reason}");
    // One channel of floats, which the decoder only calls unknown: a little TIFF written by hand.
    let mut grey = b"II*\0\x08\0\0\0".to_vec();
    let entries: [(u16, u16, u32); 9] = [
        (256, 4, 16),
        (257, 4, 16),
        (258, 3, 32),
        (259, 3, 1),
        (262, 3, 1),
        (273, 4, 8 + 2 + 9 * 12 + 4),
        (278, 4, 16),
        (279, 4, 16 * 16 * 4),
        (339, 3, 3),
    ];
    grey.extend((entries.len() as u16).to_le_bytes());
    for (tag, kind, value) in entries {
        grey.extend(tag.to_le_bytes());
        grey.extend(kind.to_le_bytes());
        grey.extend(1u32.to_le_bytes());
        grey.extend(value.to_le_bytes());
    }
    grey.extend([0; 4]);
    grey.extend(0.5f32.to_le_bytes().repeat(256));
    let reason = reason_for(&grey);
    assert!(reason.contains("32-bit float TIFF; convert it to 8 bits"), "{reason}");
}

#[test]
fn damage_is_said_in_plain_words() {
    let whole = jpeg(100, 40);
    assert!(reason_for(&whole[..whole.len() / 2]).contains("truncated"));
    let png = encoded(&DynamicImage::ImageRgb8(picture(100, 40)), ImageFormat::Png);
    let mut flipped = png.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    let reason = reason_for(&flipped);
    assert!(reason.contains("damaged PNG") && !reason.contains("0x"), "{reason}");
    let mut header = png.clone();
    header[30] ^= 1;
    assert!(reason_for(&header).contains("damaged PNG (checksum)"), "{}", reason_for(&header));
    assert!(reason_for(&png[..middle]).contains("truncated"), "{}", reason_for(&png[..middle]));
}

#[test]
fn webp_bmp_tiff_and_upper_case_suffixes_are_read() {
    let set = Set::new();
    let rgb = DynamicImage::ImageRgb8(picture(100, 40));
    let kinds = [
        ("a.webp", ImageFormat::WebP),
        ("b.BMP", ImageFormat::Bmp),
        ("c.TIFF", ImageFormat::Tiff),
        ("d.PNG", ImageFormat::Png),
    ];
    for (name, format) in kinds {
        let bytes = encoded(&rgb, format);
        assert_eq!(upright(&bytes).data, rgb.as_bytes(), "{name}");
        set.write(&format!("images/{name}"), bytes);
        set.write(&format!("labels/{}.txt", &name[..1]), common::ROW);
    }
    set.write("images/e.JPG", jpeg(100, 40));
    assert_eq!(set.scan().unwrap().samples.len(), 5);
}

#[test]
fn sizes_outside_the_limits_are_said_with_the_limit() {
    assert!(reason_for(&jpeg(9, 40)).contains("at least 10 px"));
    let set = Set::with_one();
    set.write("images/large.jpg", jpeg(200, 100));
    let scanned = set.scan_with(|o| o.limits.max_pixels = 10_000).unwrap();
    let problem = &scanned.report.problems[0];
    assert!(problem.reason.contains("200x100") && problem.reason.contains("10000"), "{problem}");
    assert!(!problem.reason.contains("max_pixels"), "{problem}");
}

#[cfg(unix)]
#[test]
fn a_pipe_named_like_an_image_does_not_stop_the_scan() {
    let set = Set::with_one();
    let pipe = |name: &str| std::process::Command::new("mkfifo").arg(set.path(name)).status();
    if !pipe("images/x.jpg").is_ok_and(|status| status.success()) {
        println!("skipped: mkfifo is not there");
        return;
    }
    // A label pipe, a pipe behind a link, and pipes given as list and as data YAML.
    set.write("images/y.jpg", jpeg(50, 50));
    for name in ["labels/y.txt", "list.txt", "data.yaml", "plain"] {
        assert!(pipe(name).unwrap().success());
    }
    std::os::unix::fs::symlink(set.path("plain"), set.path("images/z.jpg")).unwrap();
    let scanned = set.scan().unwrap();
    assert_eq!((scanned.report.images, scanned.report.backgrounds), (2, 1));
    let named: Vec<_> = scanned.report.problems.iter().map(|p| p.file.file_name().unwrap()).collect();
    assert_eq!(scanned.report.problems.len(), 2, "{named:?}");
    assert!(scanned.report.problems.iter().all(|p| p.reason.contains("pipe")), "{named:?}");

    let list = data::listing::list_images(&[set.path("list.txt")], set.dir.path()).unwrap_err().to_string();
    assert!(list.contains("list.txt: is a pipe"), "{list}");
    let yaml = data::Dataset::load(&set.path("data.yaml")).unwrap_err().to_string();
    assert!(yaml.contains("data.yaml: is a pipe"), "{yaml}");
    set.write("lines.txt", "images/x.jpg\nimages\nimages/good.jpg\n");
    let lines = data::listing::list_images(&[set.path("lines.txt")], set.dir.path()).unwrap();
    assert_eq!(lines.images.len(), 1);
    assert!(lines.problems[0].reason.contains("pipe"), "{:?}", lines.problems);
    assert!(lines.problems[1].reason.contains("is a folder; expected a file"), "{:?}", lines.problems);
}

#[test]
fn dot_files_and_folders_named_like_images_are_no_images() {
    let set = Set::with_one();
    for name in ["._a.jpg", ".DS_Store", "Thumbs.db", "desktop.ini"] {
        set.write(&format!("images/{name}"), [0, 5, 22, 7]);
    }
    std::fs::create_dir(set.path("images/x.jpg")).unwrap();
    let scanned = set.scan().unwrap();
    assert_eq!((scanned.report.images, scanned.samples.len(), scanned.report.ignored), (1, 1, 4));
    assert_eq!(scanned.report.problems, []);
}

#[test]
fn all_images_bad_is_an_error_that_names_the_first() {
    let set = Set::new();
    set.write("images/a.jpg", b"<html>");
    let error = set.scan().unwrap_err().to_string();
    assert!(error.contains("none of the 1 images") && error.contains("a.jpg"), "{error}");
}
