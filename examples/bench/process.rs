//! In: a command and how long it may take; out: the [`Line`]s that it printed and how it ended. Several can begin at once
//! and be held after their first runs. Knows nothing of cells.

use crate::line::Line;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::mem::take;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a program may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Until its first run has ended: compilation is in it.
    pub first: Duration,
    /// From then to its end.
    pub rest: Duration,
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    Success,
    /// With what it said last.
    Failure(String),
    /// It was ended before its first run was over.
    FirstNotWithin(Duration),
    /// It was ended after its first run.
    RestNotWithin(Duration),
}

/// How many lines of standard error an error holds.
const TAIL: usize = 4;

/// Programs that were begun and have not ended.
static BEGUN: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// What they keep, which goes with them where they are ended.
static KEPT: Mutex<Option<PathBuf>> = Mutex::new(None);

/// A program that was begun.
pub struct Running {
    name: String,
    child: Child,
    receive: Receiver<Line>,
    errors: Option<JoinHandle<String>>,
    lines: Vec<Line>,
    limits: Limits,
    begun: Instant,
    /// It was ended before its first run was over.
    late: bool,
}

/// Runs a program to its end or limit, whichever is first.
pub fn run(command: Command, limits: Limits) -> Result<(Vec<Line>, End), String> {
    begin(command, limits)?.rest()
}

/// Begins a program. One that waits for the end of its standard input goes on when [`Running::rest`] is called.
pub fn begin(mut command: Command, limits: Limits) -> Result<Running, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    own_group(&mut command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // held, so that Ctrl-C misses none that has just begun
    let mut all = begun();
    let mut child = command.spawn().map_err(|e| format!("{name} did not start: {e}"))?;
    all.push(child.id());
    drop(all);
    let (send, receive) = channel();
    let out = child.stdout.take().ok_or("no standard output")?;
    let err = child.stderr.take().ok_or("no standard error")?;
    thread::spawn(move || {
        for line in lines(out) {
            if let Some(line) = Line::parse(&line) {
                // the receiver is gone once the program was ended
                let _ = send.send(line);
            }
        }
    });
    let errors = Some(thread::spawn(move || tail(err)));
    Ok(Running { name, child, receive, errors, lines: Vec::new(), limits, begun: Instant::now(), late: false })
}

impl Running {
    /// Waits until its first run is over, or it ended, or it may take no longer: then it is ended.
    pub fn first(&mut self) -> Result<(), String> {
        while !self.late && !self.past_first() {
            match self.next(self.begun + self.limits.first) {
                Ok(line) => self.lines.push(line),
                Err(RecvTimeoutError::Timeout) => {
                    self.late = true;
                    return end(&mut self.child);
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Ok(())
    }

    /// Lets it go on, and waits for its end.
    pub fn rest(mut self) -> Result<(Vec<Line>, End), String> {
        drop(self.child.stdin.take());
        self.first()?;
        if self.late {
            return Ok((take(&mut self.lines), End::FirstNotWithin(self.limits.first)));
        }
        let deadline = Instant::now() + self.limits.rest;
        let late = End::RestNotWithin(self.limits.rest);
        loop {
            match self.next(deadline) {
                Ok(line) => self.lines.push(line),
                Err(RecvTimeoutError::Timeout) => {
                    end(&mut self.child)?;
                    return Ok((take(&mut self.lines), late));
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        // its output is closed, so that it has little left to do
        while self.child.try_wait().map_err(|e| format!("{}: {e}", self.name))?.is_none() {
            if Instant::now() > deadline {
                end(&mut self.child)?;
                return Ok((take(&mut self.lines), late));
            }
            thread::sleep(Duration::from_millis(5));
        }
        let status = self.child.wait().map_err(|e| format!("{}: {e}", self.name))?;
        begun().retain(|id| *id != self.child.id());
        if status.success() {
            return Ok((take(&mut self.lines), End::Success));
        }
        let said = self.errors.take().and_then(|errors| errors.join().ok()).unwrap_or_default();
        Ok((take(&mut self.lines), End::Failure(if said.is_empty() { status.to_string() } else { said })))
    }

    fn past_first(&self) -> bool {
        self.lines.iter().any(|l| matches!(l, Line::First { .. }))
    }

    fn next(&self, deadline: Instant) -> Result<Line, RecvTimeoutError> {
        self.receive.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    }
}

/// One that is given up, as where the disk is full, does not run on beside what is timed next.
impl Drop for Running {
    fn drop(&mut self) {
        if begun().contains(&self.child.id()) {
            let _ = end(&mut self.child);
        }
    }
}

/// What comes line by line, whatever its encoding.
fn lines(from: impl Read) -> impl Iterator<Item = String> {
    let lines = BufReader::new(from).split(b'\n').map_while(Result::ok);
    lines.map(|line| String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned())
}

/// The last lines that are not empty.
fn tail(from: impl Read) -> String {
    let mut last = VecDeque::new();
    for line in lines(from).filter(|l| !l.trim().is_empty()) {
        last.push_back(line);
        if last.len() > TAIL {
            last.pop_front();
        }
    }
    Vec::from(last).join("\n")
}

/// A group of its own, so that what it starts can be ended with it: torch.compile compiles in other processes.
#[cfg(unix)]
fn own_group(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    command.process_group(0);
}

#[cfg(not(unix))]
fn own_group(_: &mut Command) {}

fn begun() -> impl std::ops::DerefMut<Target = Vec<u32>> {
    BEGUN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has [`end_all`] remove a folder.
pub fn remove_at_end(folder: &Path) {
    *KEPT.lock().unwrap_or_else(PoisonError::into_inner) = Some(folder.to_owned());
}

/// Ends all programs that run, as what ends this one reaches none in a group of its own, and then this one.
pub fn end_all() -> ! {
    // held to the end, so that none of them is taken for one that failed
    let begun = begun();
    begun.iter().for_each(|id| end_group(*id));
    if let Some(folder) = KEPT.lock().unwrap_or_else(PoisonError::into_inner).take() {
        let _ = std::fs::remove_dir_all(folder);
    }
    std::process::exit(130)
}

fn end_group(id: u32) {
    if cfg!(unix) {
        // where there is no such program, a child alone is ended by who waits for it
        let _ = Command::new("kill").args(["-KILL", "--", &format!("-{id}")]).stderr(Stdio::null()).status();
    }
}

fn end(child: &mut Child) -> Result<(), String> {
    end_group(child.id());
    begun().retain(|id| *id != child.id());
    match child.try_wait() {
        Ok(Some(_)) => return Ok(()),
        _ => child.kill().map_err(|e| format!("a program cannot be ended: {e}"))?,
    }
    child.wait().map(|_| ()).map_err(|e| e.to_string())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    const FIRST: &str = r#"{"line": "first", "seconds": 0.5}"#;

    fn shell(script: &str, first: u64, rest: u64) -> (Vec<Line>, End) {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let limits = Limits { first: Duration::from_millis(first), rest: Duration::from_millis(rest) };
        run(command, limits).unwrap()
    }

    #[test]
    fn lines_are_read_and_other_words_passed_over() {
        let (lines, end) = shell(&format!("echo words; echo '{FIRST}'"), 60_000, 60_000);
        assert_eq!((lines, end), (vec![Line::First { seconds: 0.5 }], End::Success));
    }

    #[test]
    fn a_line_in_another_encoding_hides_no_other() {
        let (lines, end) =
            shell(&format!(r"printf 'caf\351\n' >&2; printf '\351\n'; echo '{FIRST}'; exit 3"), 60_000, 60_000);
        assert_eq!((lines, end), (vec![Line::First { seconds: 0.5 }], End::Failure("caf\u{fffd}".into())));
    }

    #[test]
    fn what_is_given_up_does_not_run_on() {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("echo '{FIRST}'; sleep 100 & sleep 100")]);
        let limits = Limits { first: Duration::from_secs(60), rest: Duration::from_secs(60) };
        let mut running = begin(command, limits).unwrap();
        running.first().unwrap();
        let id = running.child.id();
        drop(running);
        let group =
            || Command::new("kill").args(["-0", "--", &format!("-{id}")]).stderr(Stdio::null()).status().unwrap();
        // what a signal ended is there until its parent, or init, has looked
        let begin = Instant::now();
        while group().success() {
            assert!(begin.elapsed() < Duration::from_secs(60), "it runs on");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_failure_says_what_the_program_said_last() {
        let (_, end) = shell("for i in 1 2 3 4 5 6; do echo $i >&2; done; exit 3", 60_000, 60_000);
        assert_eq!(end, End::Failure("3\n4\n5\n6".into()));
        assert_eq!(shell("exit 3", 60_000, 60_000).1, End::Failure("exit status: 3".into()));
    }

    #[test]
    fn what_takes_longer_than_it_may_is_ended() {
        let begin = Instant::now();
        // with a process of its own, as torch.compile has
        let (_, end) = shell("sleep 100 & sleep 100", 50, 60_000);
        assert_eq!(end, End::FirstNotWithin(Duration::from_millis(50)));
        let (lines, end) = shell(&format!("echo '{FIRST}'; sleep 100"), 60_000, 50);
        assert_eq!((lines.len(), end), (1, End::RestNotWithin(Duration::from_millis(50))));
        assert!(begin.elapsed() < Duration::from_secs(60), "the programs were waited for");
    }

    #[test]
    fn held_programs_go_on_one_after_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        // waits for the end of its input between its first run and the others
        let script = |name: &str| {
            let log = log.display();
            format!(
                "echo {name} first >> {log}; echo '{FIRST}'; read x; echo {name} >> {log}; sleep 0.1; echo {name} >> {log}"
            )
        };
        let start = |script: &str, first| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            let limits = Limits { first: Duration::from_millis(first), rest: Duration::from_secs(60) };
            begin(command, limits).unwrap()
        };
        let mut all =
            [start(&script("a"), 60_000), start(&script("b"), 60_000), start("sleep 100", 50), start("exit 3", 50)];
        all.iter_mut().for_each(|one| one.first().unwrap());
        // what failed at once is no more late than what is timed after a while
        thread::sleep(Duration::from_millis(100));
        let ends: Vec<End> = all.into_iter().map(|one| one.rest().unwrap().1).collect();
        let late = End::FirstNotWithin(Duration::from_millis(50));
        assert_eq!(ends, [End::Success, End::Success, late, End::Failure("exit status: 3".into())]);
        let log = std::fs::read_to_string(log).unwrap();
        let order: Vec<&str> = log.lines().filter(|l| !l.ends_with("first")).collect();
        assert_eq!((log.lines().count(), order), (6, vec!["a", "a", "b", "b"]));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let limits = Limits { first: Duration::ZERO, rest: Duration::ZERO };
        let error = run(Command::new("no-such-program"), limits).unwrap_err();
        assert!(error.starts_with("no-such-program did not start: "), "{error}");
    }
}
