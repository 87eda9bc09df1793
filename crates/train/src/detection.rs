//! Detection on pictures.

use crate::checkpoint::{LoadedWeights, load_fitted};
use crate::device::Device;
use crate::evaluate::{Evaluator, to_original};
use crate::footprint::Room;
use crate::plans::{Decoding, InputShape, PackedTargets};
use crate::source::images_of;
use crate::summary::{DetectSummary, FoundBox, FoundImage};
use crate::validate::{check_thresholds, fractions};
use crate::{DetectOptions, Observer, Progress, TrainError, image_set, setup};
use data::Picture;
use data::decode::{ImageLimits, decode_file};
use data::letterbox::{Letterbox, LetterboxOptions, letterbox};
use data::resize::{Interpolation, resize};
use detect::boxes;
use detect::nms::NmsConfig;
use report::draw::{BoxStyle, Canvas, LabelledBox, label_text};
use report::output_names::OutputNames;
use report::predictions::{CocoDetection, ImageIds, write_coco_json, write_yolo_rows, yolo_row};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Grey of the padding.
const FILL: u8 = 114;
/// Decimals of a confidence on a label.
const DECIMALS: usize = 2;

/// Finds objects on pictures; draws and writes what was asked for.
///
/// Each picture is put into the smallest rectangle of whole strides around it; with `save_raw` all are put into one
/// square, so that their predictions have one shape.
///
/// # Errors
/// Missing or damaged weights first, then a missing source; options out of range. A picture that cannot be read is
/// named and left out; it is an error where none can be read.
pub fn detect(options: &DetectOptions, observer: &mut dyn Observer) -> Result<DetectSummary, TrainError> {
    let device = Device::choose(&options.device, options.precision, observer)?;
    check_thresholds(options.conf_thres, options.iou_thres, options.max_det)?;
    setup::check_name(&options.name)?;
    let loaded = load_fitted(&options.weights, options.cfg.as_deref(), observer)?;
    let names = class_names(options, &loaded, observer)?;
    let fitted = loaded.fitted;
    let folded = fitted.fold()?;
    let model = Arc::new(fitted.model);
    let frame_hw = frame(options, model.size_multiple(), observer)?;
    if let Some(class) = options.classes.iter().flatten().find(|&&c| c >= model.nc) {
        let message = format!("{class} is no class: ids go from 0 to {}", model.nc.saturating_sub(1));
        return Err(TrainError::option("classes", message, None));
    }
    if options.batch_size == 0 {
        return Err(TrainError::option("batch", "must be at least 1", None));
    }
    if options.save_conf && !options.save_txt {
        observer.warn("--save-conf writes nothing without --save-txt");
    }
    let sources = images_of(&options.source, observer)?;
    if let Some(raw) = &options.save_raw {
        let read = [Some(&options.weights), options.cfg.as_ref(), options.data.as_ref()];
        check_output(raw, &sources, &read.into_iter().flatten().collect::<Vec<_>>())?;
    }
    let mut evaluator = Evaluator::new(device.clone(), Arc::clone(&model), None);
    let [height, width] = frame_hw.map(|side| side as usize);
    let nms = NmsConfig {
        conf_threshold: options.conf_thres as f32,
        iou_threshold: options.iou_thres,
        multi_label: false,
        agnostic: options.agnostic_nms,
        classes: options.classes.as_ref().map(|c| c.iter().map(|&c| c as u32).collect()),
        max_det: options.max_det,
    };
    let decode = Decoding { nms, raw: options.save_raw.is_some() };
    let largest = InputShape { images: options.batch_size.clamp(1, sources.len().max(1)), height, width };
    let mut room = Room::new(options.memory_available, &device)?;
    room.take_evaluation("detection", &evaluator, &evaluator.plan(largest, 0, &decode)?, observer)?;
    let folder = report::run_folder::create_run_folder(&options.project, &options.name, options.exist_ok)?;
    let inside = folder.canonicalize().map_err(TrainError::io("open", &folder))?;
    if sources.iter().any(|s| s.canonicalize().is_ok_and(|s| s.parent() == Some(&inside))) {
        let message = format!("{} holds source pictures, which the results would replace", folder.display());
        return Err(TrainError::option("project", message, Some("name another folder with --project or --name")));
    }
    if options.save_txt {
        let labels = folder.join("labels");
        std::fs::create_dir_all(&labels).map_err(TrainError::io("create", &labels))?;
    }
    evaluator.set_folded_weights(folded)?;
    let mut run = Detection {
        options,
        stride: model.size_multiple() as u32,
        frame_hw,
        nc: model.nc,
        names: &names,
        decode,
        folder: &folder,
        output: OutputNames::default(),
        images: Vec::new(),
        coco: Vec::new(),
        ids: ImageIds::default(),
        raw: Vec::new(),
        raw_images: Vec::new(),
        anchors: 0,
    };
    let total = sources.len();
    let mut skipped = 0;
    let mut first_bad = None;
    let mut waiting: Vec<Loaded> = Vec::new();
    for (done, source) in sources.iter().enumerate() {
        match run.load(source) {
            Ok(loaded) => {
                // Only pictures of one shape share a step; the order of the results is that of the sources.
                if waiting.first().is_some_and(|w| w.fit.out_wh != loaded.fit.out_wh) {
                    run.process(&mut evaluator, std::mem::take(&mut waiting), observer)?;
                }
                waiting.push(loaded);
            }
            Err(problem) => {
                let problem = problem.to_problem(source).to_string();
                observer.warn(&format!("{problem}; the image is skipped"));
                first_bad.get_or_insert(problem);
                skipped += 1;
            }
        }
        if waiting.len() >= options.batch_size.max(1) || done + 1 == total {
            run.process(&mut evaluator, std::mem::take(&mut waiting), observer)?;
        }
        observer.progress(&Progress::Detect { done: done + 1, total });
        if observer.should_stop() {
            run.process(&mut evaluator, std::mem::take(&mut waiting), observer)?;
            break;
        }
    }
    if let (true, Some(first)) = (run.images.is_empty(), first_bad) {
        if !options.exist_ok {
            // Only what is empty goes; a folder of a run without results would just use up a number.
            let _ = std::fs::remove_dir(folder.join("labels"));
            let _ = std::fs::remove_dir(&folder);
        }
        return Err(TrainError::AllImagesBad { count: skipped, source_text: options.source.clone(), first });
    }
    let json = run.write_files()?;
    let images = run.images;
    Ok(DetectSummary { folder, names, images, skipped, json })
}

/// Names of the classes: those of the weights; for weights without a description those of `--data`.
fn class_names(
    options: &DetectOptions,
    loaded: &LoadedWeights,
    observer: &mut dyn Observer,
) -> Result<Vec<String>, TrainError> {
    let (own, nc) = (&loaded.fitted.names, loaded.fitted.model.nc);
    let Some(yaml) = &options.data else { return Ok(own.clone()) };
    if loaded.meta.is_some() {
        observer.info(&format!("--data {}: class names come with the weights", yaml.display()));
        return Ok(own.clone());
    }
    let names = image_set::load_class_names(yaml, observer)?;
    if names.len() != nc {
        return Err(TrainError::ClassCount {
            weights: options.weights.clone(),
            model: nc,
            yaml: yaml.clone(),
            data: names.len(),
        });
    }
    Ok(names)
}

/// Refuses to write over a source or another file that is read, or where nothing can be written.
fn check_output(path: &Path, sources: &[PathBuf], read: &[&PathBuf]) -> Result<(), TrainError> {
    let refuse =
        |message: String| Err(TrainError::option("save-raw", message, Some("name a new file in a folder that exists")));
    if let Ok(existing) = path.canonicalize() {
        let is_it = |other: &PathBuf| other.canonicalize().is_ok_and(|o| o == existing);
        if sources.iter().any(is_it) {
            return refuse(format!("{} is one of the source pictures", path.display()));
        }
        if read.iter().any(|other| is_it(other)) {
            return refuse(format!("{} is read by this command and would be overwritten", path.display()));
        }
        if !existing.is_file() && !existing.is_dir() {
            return refuse(format!("{} is a device or a pipe, not a file", path.display()));
        }
    }
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.is_dir() || !parent.is_dir() {
        return refuse(format!("{} cannot be written", path.display()));
    }
    Ok(())
}

/// Height and width that pictures are put into.
fn frame(options: &DetectOptions, stride: usize, observer: &mut dyn Observer) -> Result<[u32; 2], TrainError> {
    let wrong = |message: String| Err(TrainError::option("img", message, Some("one side, or height and width")));
    let (height, width) = match options.imgsz[..] {
        [side] => (side, side),
        [height, width] => (height, width),
        _ => return wrong(format!("{} numbers are given", options.imgsz.len())),
    };
    if [height, width].iter().any(|side| !(1..=16_384).contains(side)) {
        return wrong(format!("{height} x {width}: each side must be between 1 and 16384"));
    }
    if options.save_raw.is_some() && height != width {
        let message = format!("--save-raw puts pictures into squares, {height} x {width} is none");
        return Err(TrainError::option("img", message, Some("give one side")));
    }
    let mut side = |side: usize| setup::round_size(side, stride, observer) as u32;
    Ok(if height == width { [side(height); 2] } else { [side(height), side(width)] })
}

/// A picture on its way through the network.
struct Loaded {
    source: PathBuf,
    picture: Picture,
    fit: Letterbox,
    /// Network pixels, RGB.
    pixels: Vec<u8>,
}

struct Detection<'a> {
    options: &'a DetectOptions,
    stride: u32,
    frame_hw: [u32; 2],
    nc: usize,
    names: &'a [String],
    decode: Decoding,
    folder: &'a Path,
    output: OutputNames,
    images: Vec<FoundImage>,
    coco: Vec<CocoDetection>,
    ids: ImageIds,
    /// Predictions of all images, each (4 + nc, anchors).
    raw: Vec<f32>,
    raw_images: Vec<RawImage>,
    anchors: usize,
}

/// What the metadata of raw predictions say about an image: network = original * gain + pad.
#[derive(serde::Serialize)]
struct RawImage {
    image: String,
    original_hw: [u32; 2],
    network_hw: [u32; 2],
    gain: f64,
    pad_xy: [f64; 2],
}

/// How a picture lies in its frame, from the two sizes alone, as the reference scales boxes back.
fn placement(loaded: &Loaded) -> boxes::Letterbox {
    let [width, height] = loaded.fit.out_wh.map(|side| side as usize);
    boxes::Letterbox::from_sizes((height, width), (loaded.picture.height as usize, loaded.picture.width as usize))
}

impl Detection<'_> {
    fn load(&self, source: &Path) -> Result<Loaded, data::DataError> {
        let picture = decode_file(source, &ImageLimits::default())?;
        let options = LetterboxOptions {
            frame_hw: self.frame_hw,
            minimum_rectangle: self.options.save_raw.is_none(),
            scale_up: true,
            stretch: false,
            stride: self.stride,
        };
        let fit = letterbox(picture.width, picture.height, &options);
        let pixels = padded(&picture, &fit);
        Ok(Loaded { source: source.to_path_buf(), picture, fit, pixels })
    }

    /// Runs pictures of one shape and writes their results.
    fn process(
        &mut self,
        evaluator: &mut Evaluator,
        batch: Vec<Loaded>,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let Some(first) = batch.first() else { return Ok(()) };
        let [width, height] = first.fit.out_wh.map(|v| v as usize);
        let shape = InputShape { images: batch.len(), height, width };
        let pixels: Vec<u8> = batch.iter().flat_map(|l| l.pixels.iter().copied()).collect();
        let found = evaluator.run(shape, &pixels, &PackedTargets::default(), 0, &self.decode)?;
        let per_image = found.raw.len() / batch.len();
        for (i, (loaded, detections)) in batch.iter().zip(&found.detections).enumerate() {
            if self.options.save_raw.is_some() {
                self.keep_raw(loaded, &found.raw[i * per_image..(i + 1) * per_image]);
            }
            self.result(loaded, detections, observer)?;
        }
        Ok(())
    }

    fn result(
        &mut self,
        loaded: &Loaded,
        detections: &[detect::nms::Detection],
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let original_hw = [loaded.picture.height, loaded.picture.width];
        let placement = placement(loaded);
        let boxes: Vec<FoundBox> = detections
            .iter()
            .map(|d| FoundBox {
                class: d.class as usize,
                confidence: d.score,
                xyxy: to_original(&placement, original_hw, d.corners),
            })
            .collect();
        let name = self.output.assign(&loaded.source);
        if name.renamed && (!self.options.nosave || self.options.save_txt) {
            let source = loaded.source.display();
            observer.warn(&format!("{source}: another source has this name, results are called {}", name.stem));
        }
        observer.info(&self.line(loaded, &boxes));
        if self.options.save_txt && !boxes.is_empty() {
            let row = |b: &FoundBox| {
                let xywh = fractions(b.xyxy, loaded.picture.width, loaded.picture.height);
                yolo_row(b.class, xywh, self.options.save_conf.then_some(b.confidence))
            };
            let rows: Vec<String> = boxes.iter().map(row).collect();
            write_yolo_rows(&self.folder.join("labels").join(format!("{}.txt", name.stem)), &rows)?;
        }
        if self.options.json {
            let id = self.ids.assign(&name.stem);
            for b in &boxes {
                self.coco.push(CocoDetection::new(id.clone(), b.class as u32, b.xyxy, b.confidence)?);
            }
        }
        let picture = if self.options.nosave { None } else { Some(self.draw(loaded, &boxes, &name.stem)?) };
        let (width, height) = (loaded.picture.width, loaded.picture.height);
        self.images.push(FoundImage { source: loaded.source.clone(), width, height, picture, boxes });
        Ok(())
    }

    /// Such as `photo.jpg: 416x640 2 cats, 1 dog`.
    fn line(&self, loaded: &Loaded, boxes: &[FoundBox]) -> String {
        let mut counts = vec![0usize; self.nc];
        boxes.iter().for_each(|b| counts[b.class] += 1);
        let found: Vec<String> = counts
            .iter()
            .enumerate()
            .filter(|(_, n)| **n > 0)
            .map(|(class, n)| {
                let name = self.names.get(class).cloned().unwrap_or_else(|| class.to_string());
                format!("{n} {name}{}", if *n > 1 { "s" } else { "" })
            })
            .collect();
        let found = if found.is_empty() { "(no detections)".to_owned() } else { found.join(", ") };
        let [width, height] = loaded.fit.out_wh;
        format!("{}: {height}x{width} {found}", loaded.source.display())
    }

    fn draw(&self, loaded: &Loaded, boxes: &[FoundBox], stem: &str) -> Result<PathBuf, TrainError> {
        let (width, height) = (loaded.picture.width as usize, loaded.picture.height as usize);
        let mut canvas = Canvas::from_rgb(width, height, loaded.picture.data.clone())?;
        // The weakest first, so that the strongest lie on top.
        let labelled: Vec<LabelledBox> = boxes
            .iter()
            .rev()
            .map(|b| {
                let confidence = (!self.options.hide_conf).then_some(b.confidence);
                let label = match self.options.hide_labels {
                    true => String::new(),
                    false => label_text(self.names, b.class, confidence, DECIMALS),
                };
                LabelledBox { xyxy: b.xyxy, class: b.class, label }
            })
            .collect();
        let style = BoxStyle::for_picture(width, height);
        let style = self.options.line_thickness.map_or(style, |lines| style.with_line_width(lines));
        canvas.boxes(&labelled, style);
        let suffix = loaded.source.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
        let suffix = if ["jpg", "jpeg", "png", "bmp", "webp", "tif", "tiff"].contains(&suffix.as_str()) {
            suffix
        } else {
            "jpg".into()
        };
        let path = self.folder.join(format!("{stem}.{suffix}"));
        report::jpeg::save_picture(&path, &canvas)?;
        Ok(path)
    }

    /// Rows of anchors to columns of anchors.
    fn keep_raw(&mut self, loaded: &Loaded, rows: &[f32]) {
        let placement = placement(loaded);
        let [width, height] = loaded.fit.out_wh;
        self.raw_images.push(RawImage {
            image: loaded.source.to_string_lossy().into_owned(),
            original_hw: [loaded.picture.height, loaded.picture.width],
            network_hw: [height, width],
            gain: placement.gain,
            pad_xy: [placement.pad_x, placement.pad_y],
        });
        let columns = 4 + self.nc;
        self.anchors = rows.len() / columns;
        for column in 0..columns {
            self.raw.extend(rows.iter().skip(column).step_by(columns));
        }
    }

    fn write_files(&self) -> Result<Option<PathBuf>, TrainError> {
        if let Some(path) = &self.options.save_raw {
            let shape = vec![self.images.len(), 4 + self.nc, self.anchors];
            let bytes: Vec<u8> = self.raw.iter().flat_map(|v| v.to_le_bytes()).collect();
            let broken = |e: safetensors::SafeTensorError| TrainError::Checkpoint {
                path: path.clone(),
                message: format!("predictions cannot be written: {e}"),
            };
            let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, &bytes).map_err(broken)?;
            let images = serde_json::to_string(&self.raw_images).map_err(|e| TrainError::Checkpoint {
                path: path.clone(),
                message: format!("the list of images cannot be written: {e}"),
            })?;
            let metadata = std::collections::HashMap::from([("images".to_owned(), images)]);
            let file = safetensors::serialize([("predictions", view)], Some(metadata)).map_err(broken)?;
            report::atomic::write_bytes_atomic(path, &file)?;
        }
        if !self.options.json {
            return Ok(None);
        }
        let path = self.folder.join("predictions.json");
        write_coco_json(&path, &self.coco)?;
        Ok(Some(path))
    }
}

/// The picture, scaled and padded to its frame.
fn padded(picture: &Picture, fit: &Letterbox) -> Vec<u8> {
    let [out_w, out_h] = fit.out_wh.map(|v| v as usize);
    let [w, h] = fit.content_wh;
    let scaled;
    let content = if (picture.width, picture.height) == (w, h) {
        picture
    } else {
        scaled = resize(picture, w, h, Interpolation::Bilinear);
        &scaled
    };
    let mut pixels = vec![FILL; out_w * out_h * 3];
    let [x0, y0] = fit.content_xy.map(|v| v as usize);
    let row = w as usize * 3;
    for y in 0..h as usize {
        let start = ((y0 + y) * out_w + x0) * 3;
        pixels[start..start + row].copy_from_slice(content.row(y));
    }
    pixels
}
