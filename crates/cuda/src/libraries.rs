//! Where NVIDIA's libraries are, and loading them.
//!
//! Looked for in this order: the folders of `LD_LIBRARY_PATH`, the `nvidia-*` wheels of the active Python or conda
//! environment, the toolkit's folders, and what the system's loader finds by itself. A library found in a folder is
//! loaded from there by its full path with its symbols global; the bindings then find it by its name.

use crate::error::{CudaError, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// One of NVIDIA's libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Library {
    Driver,
    Nvrtc,
    CublasLt,
    Cudnn,
    Nccl,
}

impl Library {
    pub const ALL: [Library; 5] = [Self::Driver, Self::Nvrtc, Self::CublasLt, Self::Cudnn, Self::Nccl];

    /// As NVIDIA calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Driver => "the CUDA driver",
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
            Self::Nvrtc => "pip install nvidia-cuda-nvrtc",
            Self::CublasLt => "pip install nvidia-cublas",
            Self::Cudnn => "pip install nvidia-cudnn-cu13",
            Self::Nccl => "pip install nvidia-nccl-cu13",
        }
    }

    /// Loaded before it, because it needs their symbols.
    fn needs(self) -> &'static [Library] {
        match self {
            Self::Cudnn => &[Self::CublasLt, Self::Nvrtc],
            _ => &[],
        }
    }
}

/// Folders in which libraries are looked for, in order, each once.
pub fn folders() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut add = |folder: PathBuf| {
        if folder.is_dir() && !found.contains(&folder) {
            found.push(folder);
        }
    };
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
    if let Some(path) = variable("LD_LIBRARY_PATH") {
        std::env::split_paths(&path).for_each(&mut add);
    }
    for environment in ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable) {
        wheel_folders(Path::new(&environment)).into_iter().for_each(&mut add);
    }
    // A Python on the PATH stands in `bin` of its environment, or is a link to one that does.
    if let Some(path) = variable("PATH") {
        for folder in std::env::split_paths(&path) {
            for environment in environments_of(folder.join("python3")) {
                wheel_folders(&environment).into_iter().for_each(&mut add);
            }
        }
    }
    for toolkit in ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable).map(PathBuf::from) {
        add(toolkit.join("lib64"));
        add(toolkit.join("lib"));
    }
    for folder in ["/usr/local/cuda/lib64", "/usr/local/cuda-13/lib64", "/usr/local/cuda-12/lib64", "/usr/lib/wsl/lib"]
    {
        add(PathBuf::from(folder));
    }
    found
}

/// Folders above `bin` of a program and of each link on the way to it.
fn environments_of(program: PathBuf) -> Vec<PathBuf> {
    const MOST_LINKS: usize = 8;
    let mut found = Vec::new();
    let mut at = Some(program).filter(|p| p.exists());
    for _ in 0..MOST_LINKS {
        let Some(path) = at else { break };
        found.extend(path.parent().and_then(Path::parent).map(Path::to_path_buf));
        at = std::fs::read_link(&path).ok().and_then(|to| path.parent().map(|folder| folder.join(to)));
    }
    found
}

/// `lib/pythonX.Y/site-packages/nvidia/*/lib` of an environment.
fn wheel_folders(environment: &Path) -> Vec<PathBuf> {
    let children = |folder: PathBuf| -> Vec<PathBuf> {
        let mut list: Vec<PathBuf> =
            std::fs::read_dir(folder).map(|entries| entries.flatten().map(|e| e.path()).collect()).unwrap_or_default();
        list.sort();
        list
    };
    let mut found = Vec::new();
    for lib in ["lib", "lib64"] {
        for python in children(environment.join(lib)) {
            for packages in ["site-packages", "dist-packages"] {
                found.extend(children(python.join(packages).join("nvidia")).into_iter().map(|p| p.join("lib")));
            }
        }
    }
    found.retain(|f| f.is_dir());
    found
}

/// The file that [`load`] would take; `None` where only the system's loader may know one.
pub fn find(library: Library) -> Option<PathBuf> {
    let folders = folders();
    library.files().iter().find_map(|file| folders.iter().map(|f| f.join(file)).find(|p| p.is_file()))
}

/// Loads a library once, and what it needs.
///
/// # Errors
/// [`CudaError::Missing`] says where it was looked for and what brings it.
pub fn load(library: Library) -> Result<()> {
    static LOADED: Mutex<BTreeMap<Library, libloading::Library>> = Mutex::new(BTreeMap::new());
    for &needed in library.needs() {
        load(needed)?;
    }
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if loaded.contains_key(&library) {
        return Ok(());
    }
    let found = find(library);
    let candidates = found.iter().cloned().chain(library.files().iter().map(PathBuf::from));
    let mut reasons = Vec::new();
    for candidate in candidates {
        match open(&candidate) {
            Ok(handle) => {
                loaded.insert(library, handle);
                return Ok(());
            }
            Err(reason) => reasons.push(reason),
        }
    }
    Err(CudaError::Missing {
        library: library.name(),
        looked: reasons.join("; "),
        hint: library.install_command().to_owned(),
    })
}

#[cfg(unix)]
fn open(path: &Path) -> std::result::Result<libloading::Library, String> {
    use libloading::os::unix::{Library as Handle, RTLD_GLOBAL, RTLD_NOW};
    // SAFETY: the initialisers of NVIDIA's libraries have no preconditions; the handle is kept until the process ends,
    // so no symbol outlives its library.
    let handle = unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    handle.map(Into::into).map_err(|e| e.to_string())
}

#[cfg(not(unix))]
fn open(path: &Path) -> std::result::Result<libloading::Library, String> {
    // SAFETY: as on Unix.
    unsafe { libloading::Library::new(path) }.map_err(|e| e.to_string())
}

/// Path of a loaded library's file, as the system has mapped it.
pub fn mapped(library: Library) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let stem = library.files()[0].split(".so").next()?.to_owned() + ".so";
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    paths.filter(|p| p.rsplit('/').next().is_some_and(|file| file.starts_with(&stem))).map(PathBuf::from).next()
}
