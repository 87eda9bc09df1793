//! How much memory this process may still take.

use std::path::{Component, Path, PathBuf};

/// Bytes that may still be taken: what the system has to spare, or what a control group or a limit of the process
/// leaves of it. `None` where the system does not say (other systems than Linux).
pub(crate) fn available() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let own_groups = read("/proc/self/cgroup");
    [
        field(&read("/proc/meminfo"), "MemAvailable:").map(|kibi| kibi * 1024),
        group_room(Path::new("/sys/fs/cgroup"), &own_groups),
        address_room(&read("/proc/self/limits"), &read("/proc/self/status")),
    ]
    .into_iter()
    .flatten()
    .min()
}

/// The number behind a key at the start of a line.
fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().next()?.parse().ok()
}

/// The tightest control group above this process. A group's own limit counts what it has taken already, without
/// the file cache, which the system takes back when it is short of memory.
fn group_room(root: &Path, own_groups: &str) -> Option<u64> {
    let mut rooms = Vec::new();
    for line in own_groups.lines() {
        // `0::/path` in version 2, `9:memory:/path` in version 1.
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (top, [limit, taken]) = match controllers {
            "" => (root.to_path_buf(), ["memory.max", "memory.current"]),
            other if other.split(',').any(|c| c == "memory") => {
                (root.join("memory"), ["memory.limit_in_bytes", "memory.usage_in_bytes"])
            }
            _ => continue,
        };
        // Inside of a container the path is that of the host and may not exist here: the top is looked at too.
        let below: PathBuf = Path::new(path).components().filter(|c| matches!(c, Component::Normal(_))).collect();
        let mut folder = Some(top.join(below));
        while let Some(group) = folder.filter(|f| f.starts_with(&top)) {
            let read = |name: &str| std::fs::read_to_string(group.join(name)).unwrap_or_default();
            let number = |name: &str| read(name).trim().parse::<u64>().ok();
            if let Some(limit) = number(limit) {
                let files = field(&read("memory.stat"), "inactive_file ").unwrap_or(0);
                rooms.push(limit.saturating_sub(number(taken).unwrap_or(0).saturating_sub(files)));
            }
            folder = group.parent().map(Path::to_path_buf);
        }
    }
    rooms.into_iter().min()
}

/// What `ulimit -v` leaves.
fn address_room(limits: &str, status: &str) -> Option<u64> {
    let limit = field(limits, "Max address space")?;
    Some(limit.saturating_sub(field(status, "VmSize:").unwrap_or(0) * 1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_group_counts_without_its_file_cache() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(root.path().join(name), text).unwrap();
        std::fs::create_dir_all(root.path().join("a/b")).unwrap();
        write("a/memory.max", "1000\n");
        write("a/memory.current", "400\n");
        write("a/memory.stat", "anon 100\ninactive_file 300\n");
        write("a/b/memory.max", "max\n");
        assert_eq!(group_room(root.path(), "0::/a/b\n"), Some(900));
        assert_eq!(group_room(root.path(), "0::/\n"), None);
        write("memory.max", "700\n");
        assert_eq!(group_room(root.path(), "0::/not/of/here\n"), Some(700));
    }

    #[test]
    fn groups_of_version_1_count_too() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("memory/box");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::write(group.join("memory.limit_in_bytes"), "5000\n").unwrap();
        std::fs::write(group.join("memory.usage_in_bytes"), "2000\n").unwrap();
        assert_eq!(group_room(root.path(), "4:cpu:/box\n9:memory:/box\n0::/\n"), Some(3000));
    }

    #[test]
    fn a_limit_of_the_address_space_is_seen() {
        let status = "VmPeak:\t  900 kB\nVmSize:\t  1 kB\n";
        let limits = "Max address space         10240                unlimited            bytes\n";
        assert_eq!(address_room(limits, status), Some(9216));
        assert_eq!(address_room("Max address space  unlimited  unlimited  bytes\n", status), None);
    }
}
