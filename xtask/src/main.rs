//! In: `cargo xtask COMMAND`; out: the cargo runs that the command stands for, after this machine's set-up. Knows
//! nothing of kiln but its examples' names, so that it builds in seconds.

mod bench;
mod setup;

use setup::Host;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
Usage: cargo xtask COMMAND [-- ARGS]

Commands:
  demo    continue a prompt with the bundled model, then compare the modes eager, recorded and fused
  train   train a character model on the project's own text, some minutes on two CPU cores
  test    run the whole test suite; a missing adapter is a failure
  bench   time the seed's three models, beside PyTorch, burn and meganeura where they are asked for
  help    print this text

Each first sees to it that Linux has a Vulkan driver, and names the adapter that it uses.
ARGS go to the example (`cargo xtask demo -- --prompt impl`, `cargo xtask train -- --steps 200`) or to one
`cargo test --workspace` (`cargo xtask test -- --test layers`). What follows bench is its runner's
(`cargo xtask bench --help`), but for `--bin-dir DIR`: then nothing is built or installed, as the programs lie there.";

/// What was asked for, with what follows `--`.
#[derive(Debug, PartialEq)]
enum Task {
    Demo(Vec<OsString>),
    Train(Vec<OsString>),
    Test(Vec<OsString>),
    Bench(Vec<OsString>),
    Help,
}

fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Task, String> {
    let mut args = args.into_iter();
    let Some(name) = args.next() else { return Err("a command is missing".into()) };
    let task = match name.to_str() {
        Some("demo") => Task::Demo,
        Some("train") => Task::Train,
        Some("test") => Task::Test,
        Some("bench") => return Ok(Task::Bench(args.collect())),
        Some("help" | "-h" | "--help") => return Ok(Task::Help),
        _ => return Err(format!("unknown command {name:?}")),
    };
    match args.next() {
        None => Ok(task(Vec::new())),
        Some(dashes) if dashes == "--" => Ok(task(args.collect())),
        Some(other) => Err(format!("unexpected {other:?}; what goes on to cargo follows `--`")),
    }
}

fn main() -> ExitCode {
    let result = match parse(std::env::args_os().skip(1)) {
        Ok(Task::Help) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Ok(Task::Demo(args)) => example("gptlite", &["--compare", "--temperature", "0.7"], &args),
        Ok(Task::Train(args)) => example("train_gptlite", &[], &args),
        Ok(Task::Test(args)) => test(&args),
        Ok(Task::Bench(args)) => bench::bench(&args),
        Err(what) => {
            eprintln!("xtask: {what}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("xtask: {what}");
            ExitCode::FAILURE
        }
    }
}

/// Runs an example with flags and what was given.
fn example(name: &str, flags: &[&str], args: &[OsString]) -> Result<(), String> {
    let host = Host::this();
    host.ensure_driver()?;
    // built apart, so that a first build shows its progress
    run(cargo(&["build", "--release", "--example", "adapters", "--example", name]))?;
    name_adapter(&host, &["--release"])?;
    let mut command = cargo(&["run", "--quiet", "--release", "--example", name, "--"]);
    command.args(flags).args(args);
    run(command)
}

fn test(args: &[OsString]) -> Result<(), String> {
    let host = Host::this();
    host.ensure_driver()?;
    run(cargo(&["build", "--example", "adapters"]))?;
    name_adapter(&host, &[])?;
    if !args.is_empty() {
        let mut one = suite(&[]);
        one.args(args);
        return run(one);
    }
    run(suite(&["--lib", "--bins", "--tests", "--examples"]))?;
    run(suite(&["--doc"]))
}

/// A part of the suite in which neither a missing adapter nor a printed stage that differs is passed over.
fn suite(kinds: &[&str]) -> Command {
    let mut command = cargo(&["test", "--workspace"]);
    // nothing that an earlier start has kept, and nothing left behind
    command.args(kinds).env("KILN_REQUIRE_ADAPTER", "1").env("KILN_CACHE_DIR", "");
    if std::env::var_os("INSTA_UPDATE").is_none() {
        command.env("INSTA_UPDATE", "no");
    }
    command
}

/// Prints the adapters, the chosen one first. A driver may be installed without a device behind it: then Mesa's
/// software driver is added where it is missing.
fn name_adapter(host: &Host, profile: &[&str]) -> Result<(), String> {
    let adapters = || {
        let mut command = cargo(&["run", "--quiet", "--example", "adapters"]);
        command.args(profile);
        run(command)
    };
    match adapters() {
        Err(_) if host.add_software_driver()? => adapters(),
        result => result,
    }
}

/// Cargo in the workspace's root.
fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// The folder above this package; where cargo did not start this program, the current one.
fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    package.as_deref().and_then(Path::parent).map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Runs a command after printing it.
fn run(mut command: Command) -> Result<(), String> {
    let program = Path::new(command.get_program()).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let words = command.get_args().map(|a| a.to_string_lossy().into_owned());
    let line = std::iter::once(program).chain(words).collect::<Vec<_>>().join(" ");
    eprintln!("$ {line}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{line}` failed: {status}")),
        Err(error) => Err(format!("`{line}` did not start: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Task, String> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn commands_take_arguments_after_dashes() {
        assert_eq!(parsed("demo"), Ok(Task::Demo(vec![])));
        assert_eq!(parsed("train -- --steps 9"), Ok(Task::Train(vec!["--steps".into(), "9".into()])));
        assert_eq!(parsed("test -- --test layers"), Ok(Task::Test(vec!["--test".into(), "layers".into()])));
        assert_eq!(parsed("test -- -- --nocapture"), Ok(Task::Test(vec!["--".into(), "--nocapture".into()])));
        assert_eq!(parsed("bench --resume"), Ok(Task::Bench(vec!["--resume".into()])));
        assert_eq!(parsed("--help"), Ok(Task::Help));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        assert_eq!(parsed(""), Err("a command is missing".into()));
        assert_eq!(parsed("tset"), Err("unknown command \"tset\"".into()));
        assert_eq!(parsed("test layers"), Err("unexpected \"layers\"; what goes on to cargo follows `--`".into()));
    }
}
