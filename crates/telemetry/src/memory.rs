//! The memory that this process may use.

use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

/// One part in `share` of the memory of the control group, or else of the machine, within these limits. The lower limit
/// if the memory is unknown.
pub fn memory_share(share: usize, limits: RangeInclusive<usize>) -> usize {
    let (min, max) = limits.into_inner();
    memory_bytes(Path::new("/")).map_or(min, |memory| memory / share).clamp(min, max)
}

/// The lowest of the machine's memory and the limits of the process's control groups (version 2 and 1), read below
/// `root`.
fn memory_bytes(root: &Path) -> Option<usize> {
    let machine = fs::read_to_string(root.join("proc/meminfo")).ok().and_then(|text| total_bytes(&text));
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(|line| {
        let (_, group) = line.split_once(':')?;
        let (controllers, path) = group.split_once(':')?;
        let (mount, file) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        lowest_limit(&root.join(mount), path, file)
    });
    machine.into_iter().chain(limits).min()
}

/// The lowest limit of a control group and its parents. In a container the mount may show only its own group.
fn lowest_limit(mount: &Path, path: &str, file: &str) -> Option<usize> {
    let path = Path::new(path.trim_start_matches('/'));
    let limit = |group: &Path| fs::read_to_string(mount.join(group).join(file)).ok()?.trim().parse().ok();
    path.ancestors().filter_map(limit).min()
}

/// `MemTotal` of `/proc/meminfo`.
fn total_bytes(text: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of a machine with 8 GiB and these files.
    fn memory(groups: &str, files: &[(&str, &str)]) -> Option<usize> {
        let root = tempfile::tempdir().expect("a directory");
        let meminfo = "MemTotal:        8388608 kB\nMemFree:          100000 kB\n";
        for (path, text) in [("proc/meminfo", meminfo), ("proc/self/cgroup", groups)].iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, text).expect("a file");
        }
        memory_bytes(root.path())
    }

    #[test]
    fn the_lowest_limit_of_the_control_groups_counts() {
        assert_eq!(memory("0::/\n", &[]), Some(8 << 30), "no limit");
        assert_eq!(memory("0::/\n", &[("sys/fs/cgroup/memory.max", "max\n")]), Some(8 << 30));
        assert_eq!(memory("0::/\n", &[("sys/fs/cgroup/memory.max", "1073741824\n")]), Some(1 << 30));
        let parent = [("sys/fs/cgroup/a/memory.max", "2147483648\n"), ("sys/fs/cgroup/a/b/memory.max", "max\n")];
        assert_eq!(memory("0::/a/b\n", &parent), Some(2 << 30), "a parent's limit");
        let outside = [("sys/fs/cgroup/memory.max", "536870912\n")];
        assert_eq!(memory("0::/kubepods/pod7\n", &outside), Some(512 << 20), "the mount shows the own group only");
        let first = [("sys/fs/cgroup/memory/docker/7/memory.limit_in_bytes", "268435456\n")];
        assert_eq!(memory("5:cpu,memory:/docker/7\n0::/\n", &first), Some(256 << 20), "version 1");
        let unlimited = [("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")];
        assert_eq!(memory("5:memory:/\n", &unlimited), Some(8 << 30));
    }
}
