//! Folders in which NVIDIA's libraries may lie.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Environment variables, as a function so that tests have their own.
pub(super) type Variables<'v> = &'v dyn Fn(&str) -> Option<OsString>;

/// Where a toolkit or a Windows driver puts them, the newest first.
const TOOLKITS: [&str; 6] = [
    "/usr/local/cuda/lib64",
    "/usr/local/cuda-13/lib64",
    "/usr/local/cuda-12/lib64",
    "/usr/local/cuda/targets/x86_64-linux/lib",
    "/opt/cuda/lib64",
    "/usr/lib/wsl/lib",
];

/// Existing folders in the order in which they are searched, each once.
pub(super) fn folders(variables: Variables<'_>) -> Vec<PathBuf> {
    let variable = |name: &str| variables(name).filter(|v| !v.is_empty());
    let mut found: Vec<PathBuf> = Vec::new();
    let mut add = |folder: PathBuf| {
        if folder.is_dir() && !found.contains(&folder) {
            found.push(folder);
        }
    };
    if let Some(path) = variable("LD_LIBRARY_PATH") {
        std::env::split_paths(&path).filter(|p| p.is_absolute()).for_each(&mut add);
    }
    if let Some(environment) = variable("VIRTUAL_ENV") {
        wheels(Path::new(&environment)).into_iter().for_each(&mut add);
    }
    if let Some(environment) = variable("CONDA_PREFIX") {
        wheels(Path::new(&environment)).into_iter().for_each(&mut add);
        add(Path::new(&environment).join("lib"));
    }
    if let Some(path) = variable("PATH") {
        for folder in std::env::split_paths(&path) {
            for program in ["python3", "python"] {
                environments(&folder.join(program)).iter().flat_map(|e| wheels(e)).for_each(&mut add);
            }
        }
    }
    if let Some(home) = variable("HOME") {
        wheels(&Path::new(&home).join(".local")).into_iter().for_each(&mut add);
    }
    for toolkit in ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable).map(PathBuf::from) {
        add(toolkit.join("lib64"));
        add(toolkit.join("lib"));
    }
    TOOLKITS.iter().map(PathBuf::from).for_each(add);
    found
}

/// Python environments that a program belongs to: the folders above the `bin` that it stands in, that each link on the
/// way to it stands in, by the names given and by those without links, and the ones that `pyvenv.cfg` names as home.
fn environments(program: &Path) -> Vec<PathBuf> {
    const MOST_LINKS: usize = 16;
    let mut found: Vec<PathBuf> = Vec::new();
    let mut queue = VecDeque::new();
    if program.exists() {
        queue.push_back(program.to_path_buf());
    }
    for _ in 0..MOST_LINKS {
        let Some(path) = queue.pop_front() else { break };
        let Some(folder) = path.parent() else { continue };
        let straight = folder.canonicalize().ok();
        for folder in [Some(folder.to_path_buf()), straight.clone()].into_iter().flatten() {
            let Some(above) = folder.parent().map(Path::to_path_buf).filter(|f| !found.contains(f)) else { continue };
            if let Some(home) = home_of(&above) {
                queue.push_back(home.join("python3"));
            }
            found.push(above);
        }
        if let Ok(to) = std::fs::read_link(&path) {
            // A relative link counts from where the folder really is.
            queue.push_front(straight.unwrap_or_else(|| folder.to_path_buf()).join(to));
        }
    }
    found
}

/// Folder of the interpreter that a virtual environment was made from.
fn home_of(environment: &Path) -> Option<PathBuf> {
    let text = std::fs::read_to_string(environment.join("pyvenv.cfg")).ok()?;
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs.filter(|(name, _)| name.trim() == "home").map(|(_, value)| PathBuf::from(value.trim())).next()
}

/// `lib/pythonX.Y/site-packages/nvidia/*/lib` of an environment, where wheels put libraries.
fn wheels(environment: &Path) -> Vec<PathBuf> {
    let children = |folder: PathBuf| -> Vec<PathBuf> {
        let mut list: Vec<PathBuf> =
            std::fs::read_dir(folder).map(|entries| entries.flatten().map(|e| e.path()).collect()).unwrap_or_default();
        list.sort();
        list
    };
    let is_python = |path: &PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("python"));
    let mut found = Vec::new();
    for lib in ["lib", "lib64"] {
        for python in children(environment.join(lib)).into_iter().filter(is_python) {
            for packages in ["site-packages", "dist-packages"] {
                found.extend(children(python.join(packages).join("nvidia")).into_iter().map(|p| p.join("lib")));
            }
        }
    }
    found.retain(|f| f.is_dir());
    found
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    const WHEEL: &str = "lib/python3.12/site-packages/nvidia/cudnn/lib";

    /// A virtual environment at `root/name` with one wheel; its interpreter links to `base`.
    fn environment(root: &Path, name: &str, base: &Path) -> PathBuf {
        let made = root.join(name);
        fs::create_dir_all(made.join("bin")).expect("a folder");
        fs::create_dir_all(made.join(WHEEL)).expect("a folder");
        symlink(base, made.join("bin/python3.12")).expect("a link");
        symlink("python3.12", made.join("bin/python3")).expect("a link");
        symlink("python3", made.join("bin/python")).expect("a link");
        made
    }

    /// An interpreter of the system, without wheels.
    fn base(root: &Path) -> PathBuf {
        let bin = root.join("usr/bin");
        fs::create_dir_all(&bin).expect("a folder");
        fs::write(bin.join("python3.12"), "").expect("a file");
        bin.join("python3.12")
    }

    fn search(root: &Path, set: &[(&str, PathBuf)]) -> Vec<PathBuf> {
        let value = |name: &str| set.iter().find(|s| s.0 == name).map(|s| s.1.clone().into_os_string());
        folders(&value).into_iter().filter(|f| f.starts_with(root)).collect()
    }

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let held = tempfile::tempdir().expect("a folder");
        let path = held.path().canonicalize().expect("a path");
        (held, path)
    }

    #[test]
    fn wheels_beside_the_python_of_the_path_are_found() {
        let (_held, root) = folder();
        let made = environment(&root, "venv", &base(&root));
        assert_eq!(search(&root, &[("PATH", made.join("bin"))]), [made.join(WHEEL)]);
    }

    #[test]
    fn a_link_into_an_environment_leads_to_its_wheels() {
        let (_held, root) = folder();
        let made = environment(&root, "opt/torch/.venv", &base(&root));
        let bin = root.join("local/bin");
        fs::create_dir_all(&bin).expect("a folder");
        symlink(made.join("bin/python3"), bin.join("python3")).expect("a link");
        assert_eq!(search(&root, &[("PATH", bin)]), [made.join(WHEEL)]);
    }

    #[test]
    fn a_linked_bin_folder_leads_to_its_environment() {
        let (_held, root) = folder();
        let made = environment(&root, "opt/torch/.venv", &base(&root));
        symlink(made.join("bin"), root.join("bin")).expect("a link");
        assert_eq!(search(&root, &[("PATH", root.join("bin"))]), [made.join(WHEEL)]);
    }

    #[test]
    fn the_home_of_an_environment_is_searched_after_it() {
        let (_held, root) = folder();
        let outer = environment(&root, "outer", &base(&root));
        let inner = root.join("inner");
        fs::create_dir_all(inner.join("bin")).expect("a folder");
        fs::create_dir_all(inner.join(WHEEL)).expect("a folder");
        fs::write(inner.join("bin/python"), "").expect("a file");
        fs::write(inner.join("pyvenv.cfg"), format!("home = {}\nversion = 3.12\n", outer.join("bin").display()))
            .expect("a file");
        assert_eq!(search(&root, &[("PATH", inner.join("bin"))]), [inner.join(WHEEL), outer.join(WHEEL)]);
    }

    #[test]
    fn the_active_environment_comes_before_the_path_and_the_user() {
        let (_held, root) = folder();
        let base = base(&root);
        let (active, other) = (environment(&root, "active", &base), environment(&root, "other", &base));
        let user = root.join("home/.local").join(WHEEL);
        fs::create_dir_all(&user).expect("a folder");
        let set = [("PATH", other.join("bin")), ("VIRTUAL_ENV", active.clone()), ("HOME", root.join("home"))];
        assert_eq!(search(&root, &set), [active.join(WHEEL), other.join(WHEEL), user]);
    }

    #[test]
    fn conda_and_toolkits_have_a_folder_of_their_own() {
        let (_held, root) = folder();
        for name in ["conda/lib", "cuda/lib64", "first"] {
            fs::create_dir_all(root.join(name)).expect("a folder");
        }
        let set = [
            ("CONDA_PREFIX", root.join("conda")),
            ("CUDA_HOME", root.join("cuda")),
            ("LD_LIBRARY_PATH", root.join("first")),
        ];
        assert_eq!(search(&root, &set), [root.join("first"), root.join("conda/lib"), root.join("cuda/lib64")]);
    }

    #[test]
    fn links_that_go_round_end() {
        let (_held, root) = folder();
        let bin = root.join("bin");
        fs::create_dir_all(&bin).expect("a folder");
        symlink("python", bin.join("python3")).expect("a link");
        symlink("python3", bin.join("python")).expect("a link");
        assert!(search(&root, &[("PATH", bin)]).is_empty());
    }
}
