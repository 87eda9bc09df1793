//! Where NVIDIA's libraries are, and loading them.
//!
//! Looked for in this order: the folders of `LD_LIBRARY_PATH`; the `nvidia-*` wheels of the active Python or conda
//! environment, of every Python on the `PATH` and of the user; the toolkit's folders; and what the system's loader
//! finds by itself. A library found in a folder is loaded from there by its full path with its symbols global, so that
//! what other libraries ask for by name is the same copy. Functions are looked up in that copy: bindings that load by
//! name may take another one, such as a development link of the system.

mod search;

use crate::error::{CudaError, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One of NVIDIA's libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Library {
    Driver,
    Nvml,
    Nvrtc,
    CublasLt,
    Cudnn,
    Nccl,
}

impl Library {
    pub const ALL: [Library; 6] = [Self::Driver, Self::Nvml, Self::Nvrtc, Self::CublasLt, Self::Cudnn, Self::Nccl];

    /// As NVIDIA calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Driver => "the CUDA driver",
            Self::Nvml => "NVML",
            Self::Nvrtc => "NVRTC",
            Self::CublasLt => "cuBLASLt",
            Self::Cudnn => "cuDNN",
            Self::Nccl => "NCCL",
        }
    }

    /// File names, the newest major version first.
    pub fn files(self) -> &'static [&'static str] {
        match self {
            Self::Driver => &["libcuda.so.1"],
            Self::Nvml => &["libnvidia-ml.so.1"],
            Self::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12"],
            Self::CublasLt => &["libcublasLt.so.13", "libcublasLt.so.12"],
            Self::Cudnn => &["libcudnn.so.9"],
            Self::Nccl => &["libnccl.so.2"],
        }
    }

    /// What brings it.
    pub fn install_command(self) -> &'static str {
        match self {
            Self::Driver => "install NVIDIA's driver 580 or newer from your distribution, then reboot",
            Self::Nvml => {
                "install NVIDIA's driver 580 or newer; in a container, add utility to NVIDIA_DRIVER_CAPABILITIES"
            }
            Self::Nvrtc => "pip install nvidia-cuda-nvrtc",
            Self::CublasLt => "pip install nvidia-cublas",
            Self::Cudnn => "pip install nvidia-cudnn-cu13",
            Self::Nccl => "pip install nvidia-nccl-cu13",
        }
    }

    /// Loaded before it, because it asks for them by name.
    fn needs(self) -> &'static [Library] {
        match self {
            Self::Cudnn => &[Self::CublasLt, Self::Nvrtc],
            _ => &[],
        }
    }

    /// Parts that it loads by name when it needs them, each after those that it links to itself. They must come from
    /// its own folder, also where another copy of them is on the system's path.
    fn parts(self) -> &'static [&'static str] {
        match self {
            Self::Cudnn => &[
                "libcudnn_graph.so.9",
                "libcudnn_ops.so.9",
                "libcudnn_cnn.so.9",
                "libcudnn_heuristic.so.9",
                "libcudnn_engines_precompiled.so.9",
                "libcudnn_engines_runtime_compiled.so.9",
            ],
            _ => &[],
        }
    }
}

/// Folders in which libraries are looked for, in order, each once.
pub fn folders() -> Vec<PathBuf> {
    search::folders(&|name| std::env::var_os(name))
}

/// The file that [`load`] takes first; `None` where only the system's loader may know one.
pub fn find(library: Library) -> Option<PathBuf> {
    find_in(library, &folders())
}

/// The newest file of the first folder that has one: one environment serves all that it can.
fn find_in(library: Library, folders: &[PathBuf]) -> Option<PathBuf> {
    // The driver and what comes with it belong to the system. What toolkits bring under their names are stubs.
    if matches!(library, Library::Driver | Library::Nvml) {
        return None;
    }
    folders.iter().find_map(|folder| library.files().iter().map(|file| folder.join(file)).find(|p| p.is_file()))
}

/// A library in this process, with what was loaded for it.
struct Loaded {
    handle: libloading::Library,
    _parts: Vec<libloading::Library>,
}

fn loaded() -> MutexGuard<'static, BTreeMap<Library, Loaded>> {
    static LOADED: Mutex<BTreeMap<Library, Loaded>> = Mutex::new(BTreeMap::new());
    LOADED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Loads a library once, and what it needs.
///
/// # Errors
/// [`CudaError::Missing`] says where it was looked for and what brings it.
pub fn load(library: Library) -> Result<()> {
    for &needed in library.needs() {
        load(needed)?;
    }
    let mut loaded = loaded();
    if loaded.contains_key(&library) {
        return Ok(());
    }
    let candidates = find(library).into_iter().chain(library.files().iter().map(PathBuf::from));
    let mut reasons = Vec::new();
    for candidate in candidates {
        let parts = match candidate.parent().filter(|folder| folder.is_absolute()) {
            Some(folder) => library.parts().iter().filter_map(|part| open(&folder.join(part)).ok()).collect(),
            None => Vec::new(),
        };
        match open(&candidate) {
            Ok(handle) => {
                loaded.insert(library, Loaded { handle, _parts: parts });
                return Ok(());
            }
            Err(reason) => reasons.push(reason),
        }
    }
    Err(missing(library, reasons.join("; ")))
}

fn missing(library: Library, looked: String) -> CudaError {
    CudaError::Missing { library: library.name(), looked, hint: library.install_command().to_owned() }
}

/// A function of a library, which is loaded if it is not yet.
///
/// # Errors
/// As [`load`]; a library that has no such function.
///
/// # Safety
/// `F` is the type of a pointer to that function.
pub(crate) unsafe fn symbol<F: Copy>(library: Library, name: &str) -> Result<F> {
    load(library)?;
    let loaded = loaded();
    let Some(entry) = loaded.get(&library) else { return Err(missing(library, "it was not loaded".to_owned())) };
    // SAFETY: the caller's promise on the type; the library stays loaded until the process ends.
    let found = unsafe { entry.handle.get::<F>(name.as_bytes()) };
    found.map(|symbol| *symbol).map_err(|error| missing(library, reason(&error)))
}

/// Declares the functions of a library that are used. `get` looks them up when it is first called.
macro_rules! functions {
    ($(#[$doc:meta])* $vis:vis struct $name:ident of $library:expr; $($function:ident($($argument:ty),* $(,)?) -> $result:ty;)*) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        $vis struct $name {
            $($vis $function: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $name {
            /// # Errors
            /// A missing library, or one without these functions.
            $vis fn get() -> $crate::error::Result<&'static Self> {
                static FOUND: std::sync::OnceLock<$name> = std::sync::OnceLock::new();
                if let Some(found) = FOUND.get() {
                    return Ok(found);
                }
                let found = Self {
                    // SAFETY: the types are those of NVIDIA's headers.
                    $($function: unsafe { $crate::libraries::symbol($library, stringify!($function)) }?,)*
                };
                Ok(FOUND.get_or_init(|| found))
            }
        }
    };
}
pub(crate) use functions;

#[cfg(unix)]
fn open(path: &Path) -> std::result::Result<libloading::Library, String> {
    use libloading::os::unix::{Library as Handle, RTLD_GLOBAL, RTLD_NOW};
    // SAFETY: the initialisers of NVIDIA's libraries have no preconditions; the handle is kept until the process ends,
    // so no symbol outlives its library.
    let handle = unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    handle.map(Into::into).map_err(|e| reason(&e))
}

#[cfg(not(unix))]
fn open(path: &Path) -> std::result::Result<libloading::Library, String> {
    // SAFETY: as on Unix.
    unsafe { libloading::Library::new(path) }.map_err(|e| reason(&e))
}

/// What the loader says, which is the error's source.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Path of a library's file as the system has mapped it; `None` while it is not loaded.
pub fn mapped(library: Library) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let paths: Vec<&str> = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..])).collect();
    // `libcudnn.so.9.1.0` for `libcudnn.so.9`. Links are followed by the system: it may have another name altogether.
    let known = find(library).and_then(|p| p.canonicalize().ok());
    if let Some(known) = known.filter(|k| paths.iter().any(|p| Path::new(p) == k)) {
        return Some(known);
    }
    let stem = library.files()[0].split_once(".so").map_or("", |n| n.0);
    let named = |path: &&str| path.rsplit('/').next().is_some_and(|file| file.starts_with(&format!("{stem}.so")));
    paths.into_iter().find(named).map(PathBuf::from)
}

/// A library's version and file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub library: Library,
    /// Such as `9.14.0`.
    pub version: String,
    /// The file, where the system says which.
    pub path: Option<PathBuf>,
}

/// Loads every library and asks for its version.
///
/// A library that is missing has its error instead.
pub fn versions() -> Vec<(Library, Result<Version>)> {
    let version_of = |library| version(library).map(|version| Version { library, version, path: mapped(library) });
    Library::ALL.into_iter().map(|library| (library, version_of(library))).collect()
}

/// Version of a library, such as `13.0`.
///
/// # Errors
/// A missing library.
pub fn version(library: Library) -> Result<String> {
    type OneNumber = unsafe extern "C" fn(*mut i32) -> i32;
    type TwoNumbers = unsafe extern "C" fn(*mut i32, *mut i32) -> i32;
    type Size = unsafe extern "C" fn() -> usize;
    // SAFETY: the functions have these types, and write one or two numbers.
    unsafe {
        Ok(match library {
            Library::Driver => {
                let mut v = 0;
                symbol::<OneNumber>(library, "cuDriverGetVersion")?(&mut v);
                format!("{}.{}", v / 1000, v % 1000 / 10)
            }
            Library::Nvml => crate::telemetry::version()?,
            Library::Nvrtc => {
                let (mut major, mut minor) = (0, 0);
                symbol::<TwoNumbers>(library, "nvrtcVersion")?(&mut major, &mut minor);
                format!("{major}.{minor}")
            }
            Library::CublasLt => dotted(symbol::<Size>(library, "cublasLtGetVersion")?()),
            Library::Cudnn => dotted(symbol::<Size>(library, "cudnnGetVersion")?()),
            Library::Nccl => {
                let mut v = 0;
                symbol::<OneNumber>(library, "ncclGetVersion")?(&mut v);
                dotted(usize::try_from(v).unwrap_or(0))
            }
        })
    }
}

/// `91400` is 9.14.0, and so is cuBLASLt's and NCCL's counting: two digits each for the last two numbers.
fn dotted(version: usize) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_folder_that_has_a_library_serves_it() {
        let held = tempfile::tempdir().expect("a folder");
        let folders: Vec<PathBuf> = ["none", "old", "new"].iter().map(|name| held.path().join(name)).collect();
        for (folder, files) in folders.iter().zip([
            &[][..],
            &["libnvrtc.so.12"],
            &["libnvrtc.so.12", "libnvrtc.so.13", "libcuda.so.1", "libnvidia-ml.so.1"],
        ]) {
            std::fs::create_dir(folder).expect("a folder");
            for file in files {
                std::fs::write(folder.join(file), "").expect("a file");
            }
        }
        assert_eq!(find_in(Library::Nvrtc, &folders), Some(folders[1].join("libnvrtc.so.12")));
        assert_eq!(find_in(Library::Nvrtc, &folders[2..]), Some(folders[2].join("libnvrtc.so.13")));
        assert_eq!(find_in(Library::Cudnn, &folders), None);
        for library in [Library::Driver, Library::Nvml] {
            assert_eq!(find_in(library, &folders), None, "toolkits bring stubs only");
        }
    }

    #[test]
    fn versions_are_readable() {
        assert_eq!(dotted(91_400), "9.14.0");
        assert_eq!(dotted(130_401), "13.4.1");
        assert_eq!(dotted(22_703), "2.27.3");
    }
}
