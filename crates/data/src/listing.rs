//! Which images a folder or a list file means, and where the labels of an image are.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::error::{DataError, Problem};

/// Suffixes of image files, compared without case.
pub const IMAGE_SUFFIXES: [&str; 8] = ["bmp", "jpeg", "jpg", "mpo", "png", "tif", "tiff", "webp"];

/// Folders deeper than this are not entered.
const MAX_DEPTH: usize = 64;
/// Problems of one list file that are named; further ones are counted.
const MAX_NAMED: usize = 50;

/// Images in the order of the pass.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Sorted by path. An image that lists name several times is there once.
    pub images: Vec<PathBuf>,
    /// Lines without a file, folders that cannot be read, suffixes that are not supported.
    pub problems: Vec<Problem>,
    /// Dot files, `Thumbs.db` and the like with an image suffix or none.
    pub ignored: usize,
}

/// Lists the images of folders and list files. `root` is the data set's folder, for relative list lines.
pub fn list_images(places: &[PathBuf], root: &Path) -> Result<Listing, DataError> {
    let mut out = Listing::default();
    for place in places {
        if place.is_dir() {
            let mut visited = HashSet::new();
            walk(place, 0, &mut visited, &mut out);
        } else {
            read_list(place, root, &mut out)?;
        }
    }
    out.images.sort();
    if places.iter().any(|p| p.is_file()) || places.len() > 1 {
        drop_repeated(places, &mut out);
    }
    if out.images.is_empty() {
        let places: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
        let hint = out
            .problems
            .first()
            .map_or_else(|| format!("images end in one of: {}", IMAGE_SUFFIXES.join(", ")), |p| p.to_string());
        return Err(DataError::NoImages { places: places.join(", "), hint: Some(hint) });
    }
    Ok(out)
}

/// Keeps the first of the paths that lead to the same image and the same label file.
fn drop_repeated(places: &[PathBuf], out: &mut Listing) {
    let canonical = |p: &Path| p.canonicalize().unwrap_or_else(|_| p.to_path_buf());
    let before = out.images.len();
    let mut seen = HashSet::new();
    // A link with a label file of its own is a sample of its own.
    out.images.retain(|image| seen.insert((canonical(image), find_label(image).map(|(label, _)| canonical(&label)))));
    let repeated = before - out.images.len();
    if repeated > 0 {
        let place = places.iter().find(|p| p.is_file()).unwrap_or(&places[0]);
        let reason = format!("{repeated} paths name images that are there already; each image is used once");
        out.problems.push(Problem::of_file(place, reason));
    }
}

fn suffix_of(path: &Path) -> String {
    path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default()
}

fn is_image_name(path: &Path) -> bool {
    IMAGE_SUFFIXES.contains(&suffix_of(path).as_str())
}

fn walk(folder: &Path, depth: usize, visited: &mut HashSet<PathBuf>, out: &mut Listing) {
    // A link that leads back up would be walked for ever.
    let canonical = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
    if depth > MAX_DEPTH || !visited.insert(canonical) {
        return;
    }
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) => {
            out.problems.push(Problem::of_file(folder, format!("the folder cannot be read: {e}")));
            return;
        }
    };
    let mut folders = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with('.') {
            out.ignored += 1;
            continue;
        }
        // Follows links, unlike the entry's own type.
        let Ok(meta) = std::fs::metadata(&path) else {
            if is_image_name(&path) {
                out.problems.push(Problem::of_file(&path, "a link to a file that does not exist"));
            }
            continue;
        };
        if meta.is_dir() {
            folders.push(path);
        } else if !meta.is_file() {
            // Reading a pipe or a device may never end.
            if is_image_name(&path) {
                let reason = "is a pipe, a socket or a device and not a regular file; left out";
                out.problems.push(Problem::of_file(&path, reason));
            }
        } else if is_image_name(&path) {
            out.images.push(path);
        } else if ["db", "ini"].contains(&suffix_of(&path).as_str()) {
            out.ignored += 1;
        } else if ["gif", "dng", "pfm", "heic", "avif", "jp2"].contains(&suffix_of(&path).as_str()) {
            out.problems.push(Problem::of_file(&path, "images of this kind are not supported; convert it"));
        }
    }
    folders.sort();
    for sub in folders {
        walk(&sub, depth + 1, visited, out);
    }
}

fn read_list(list: &Path, root: &Path, out: &mut Listing) -> Result<(), DataError> {
    let bytes = crate::decode::read_file(list)?;
    if let Some(reason) = crate::labels::utf16_reason(&bytes) {
        return Err(DataError::Yaml { path: list.to_path_buf(), line: None, reason, hint: None });
    }
    if is_image_name(list) {
        out.images.push(list.to_path_buf());
        return Ok(());
    }
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&bytes);
    let folder = list.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut missing = 0;
    for (index, raw) in bytes.split(|&b| b == b'\n').enumerate() {
        let line = raw.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let names = names_of(line);
        let candidates = || {
            names.iter().flat_map(|name| {
                let own = name.strip_prefix("./").unwrap_or(name);
                [folder.join(own), root.join(own), PathBuf::from(name)]
            })
        };
        let found = candidates().find(|p| p.is_file());
        match found {
            Some(path) if is_image_name(&path) => out.images.push(path),
            Some(path) => out.problems.push(Problem::of_line(
                list,
                index + 1,
                format!("{} does not end in an image suffix; skipped", path.display()),
            )),
            None => {
                missing += 1;
                if missing <= MAX_NAMED {
                    let shown = String::from_utf8_lossy(line);
                    let reason = match candidates().find(|p| p.exists()) {
                        Some(p) if p.is_dir() => format!("{shown} is a folder; expected a file; skipped"),
                        Some(_) => format!("{shown} is a pipe, a socket or a device; expected a file; skipped"),
                        None => format!(
                            "{shown} does not exist (looked beside the list, in {} and in the current folder); skipped",
                            root.display()
                        ),
                    };
                    out.problems.push(Problem::of_line(list, index + 1, reason));
                }
            }
        }
    }
    if missing > MAX_NAMED {
        out.problems
            .push(Problem::of_file(list, format!("{} more lines name no file that exists", missing - MAX_NAMED)));
    }
    Ok(())
}

/// Ways to read a line: as it is, as Latin-1 when it is not UTF-8, and with the other system's slashes.
fn names_of(line: &[u8]) -> Vec<PathBuf> {
    let mut names = Vec::new();
    match std::str::from_utf8(line) {
        Ok(text) => {
            names.push(PathBuf::from(text));
            if cfg!(not(windows)) && text.contains('\\') {
                names.push(PathBuf::from(text.replace('\\', "/")));
            }
        }
        Err(_) => {
            #[cfg(unix)]
            names.push(PathBuf::from(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(line)));
            names.push(PathBuf::from(line.iter().map(|&b| char::from(b)).collect::<String>()));
        }
    }
    names
}

/// Where the labels of an image should be: the last folder `images` of the path becomes `labels` and the
/// suffix `.txt`; without such a folder the .txt lies beside the image.
pub fn label_path(image: &Path) -> PathBuf {
    let text = image.with_extension("txt");
    let parts: Vec<_> = text.components().collect();
    let Some(last) =
        parts.len().checked_sub(1).and_then(|n| parts[..n].iter().rposition(|c| c.as_os_str() == "images"))
    else {
        return text;
    };
    parts.iter().enumerate().map(|(i, c)| if i == last { "labels".as_ref() } else { c.as_os_str() }).collect()
}

/// The label file of an image, and whether it is the neighbour of an image below a folder `images`
/// (where it is not expected but taken). `None` if there is none.
pub fn find_label(image: &Path) -> Option<(PathBuf, bool)> {
    let expected = label_path(image);
    if expected.is_file() {
        return Some((expected, false));
    }
    let neighbour = image.with_extension("txt");
    (neighbour != expected && neighbour.is_file()).then_some((neighbour, true))
}
