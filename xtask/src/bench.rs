//! In: what follows `cargo xtask bench`; out: the benchmark's programs, built, and its runner started. Knows their names and
//! folders alone: what is measured is the runner's to know.

use crate::setup::Host;
use crate::{cargo, root, run};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where a peer's package lies.
const PEERS: [(&str, &str); 2] = [("burn", "benches/peers/burn"), ("meganeura", "benches/peers/meganeura")];

/// What the runner's arguments ask of this command.
#[derive(Debug, Default, PartialEq)]
struct Plan {
    /// Programs that are there already: nothing is built.
    bin_dir: Option<PathBuf>,
    /// Peers to build.
    peers: Vec<&'static str>,
    /// What the runner is given.
    args: Vec<OsString>,
}

impl Plan {
    fn of(given: &[OsString]) -> Result<Plan, String> {
        let mut plan = Plan::default();
        let mut given = given.iter().filter(|a| *a != "--");
        while let Some(arg) = given.next() {
            let text = arg.to_string_lossy();
            if let Some(dir) = text.strip_prefix("--bin-dir=") {
                plan.bin_dir = Some(dir.into());
            } else if text == "--bin-dir" {
                plan.bin_dir = Some(given.next().ok_or("--bin-dir is without its folder")?.into());
            } else {
                plan.args.push(arg.clone());
            }
        }
        plan.peers = peers(&plan.args);
        Ok(plan)
    }
}

/// The peers that `--compare` names; none where nothing is run.
fn peers(args: &[OsString]) -> Vec<&'static str> {
    if args.iter().filter_map(|arg| arg.to_str()).any(|arg| arg == "--list" || arg.starts_with("--table")) {
        return Vec::new();
    }
    let words = args.iter().enumerate().filter_map(|(i, arg)| {
        let text = arg.to_str()?;
        match text.strip_prefix("--compare=") {
            Some(list) => Some(list),
            None if text == "--compare" => args.get(i + 1)?.to_str(),
            None => None,
        }
    });
    let named: Vec<&str> = words.flat_map(|list| list.split(',')).collect();
    PEERS.iter().map(|(name, _)| *name).filter(|name| named.contains(name)).collect()
}

/// Builds what is to be measured, unless it is there, and starts the runner.
pub fn bench(given: &[OsString]) -> Result<(), String> {
    let plan = Plan::of(given)?;
    let (runner, folders) = match &plan.bin_dir {
        Some(dir) => (dir.clone(), vec![dir.clone()]),
        None => build(&plan)?,
    };
    let mut command = Command::new(runner.join(format!("bench{}", std::env::consts::EXE_SUFFIX)));
    command.arg("--programs").arg(join(&folders)).args(&plan.args);
    if plan.bin_dir.is_none() {
        command.current_dir(root());
    }
    run(command)
}

/// The folder with the runner, and all in which its programs lie.
fn build(plan: &Plan) -> Result<(PathBuf, Vec<PathBuf>), String> {
    Host::this().ensure_driver()?;
    let target = target()?;
    run(cargo(&["build", "--release", "--example", "bench", "--example", "seed_models"]))?;
    let examples = target.join("release/examples");
    let mut folders = vec![examples.clone(), root().join("benches/pytorch")];
    for (name, folder) in PEERS.iter().filter(|(name, _)| plan.peers.contains(name)) {
        let (manifest, into) = (root().join(folder).join("Cargo.toml"), target.join("peers"));
        let mut command = cargo(&["build", "--release", "--locked"]);
        command.arg("--manifest-path").arg(manifest).arg("--target-dir").arg(&into);
        if let Err(what) = run(command) {
            // its cells then say that the program is not there
            eprintln!("xtask: {what}; going on without {name}");
        }
        folders.push(into.join("release"));
    }
    folders.dedup();
    Ok((examples, folders))
}

/// Where cargo puts what it builds: this program lies in its folder of a profile.
fn target() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    own.ancestors().nth(2).map(Path::to_path_buf).ok_or_else(|| format!("{} lies in no target folder", own.display()))
}

fn join(folders: &[PathBuf]) -> OsString {
    folders.iter().map(|f| f.as_os_str()).collect::<Vec<_>>().join(OsStr::new(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(line: &str) -> Result<Plan, String> {
        Plan::of(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn peers_are_built_where_they_are_named() {
        assert_eq!(plan("--compare pytorch,meganeura --resume").unwrap().peers, ["meganeura"]);
        assert_eq!(plan("--compare=burn --compare meganeura").unwrap().peers, ["burn", "meganeura"]);
        assert!(plan("--only meganeura --compare").unwrap().peers.is_empty());
        assert!(plan("--list --compare burn").unwrap().peers.is_empty());
        assert!(plan("--compare burn --table=a.jsonl").unwrap().peers.is_empty());
    }

    #[test]
    fn programs_that_are_there_are_not_built() {
        let plan = plan("-- --bin-dir /carried --models deep").unwrap();
        assert_eq!(plan.bin_dir, Some("/carried".into()));
        assert_eq!(plan.args, ["--models", "deep"]);
        assert_eq!(super::Plan::of(&["--bin-dir".into()]).unwrap_err(), "--bin-dir is without its folder");
    }

    #[test]
    fn folders_are_given_as_one_word() {
        assert_eq!(join(&["a".into(), "b c".into()]), "a,b c");
    }
}
