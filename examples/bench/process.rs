//! In: a command and how long it may take; out: the [`Line`]s that it printed and how it ended. Knows nothing of cells.

use crate::line::Line;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
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

/// Runs a program to its end or limit, whichever is first.
pub fn run(mut command: Command, limits: Limits) -> Result<(Vec<Line>, End), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    own_group(&mut command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| format!("{name} did not start: {e}"))?;
    let (send, receive) = channel();
    let out = child.stdout.take().ok_or("no standard output")?;
    let err = child.stderr.take().ok_or("no standard error")?;
    thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if let Some(line) = Line::parse(&line) {
                // the receiver is gone once the program was ended
                let _ = send.send(line);
            }
        }
    });
    let errors = thread::spawn(move || tail(err));
    let (mut lines, mut deadline, mut first) = (Vec::new(), Instant::now() + limits.first, false);
    loop {
        match receive.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if matches!(line, Line::First { .. }) && !first {
                    (first, deadline) = (true, Instant::now() + limits.rest);
                }
                lines.push(line);
            }
            Err(RecvTimeoutError::Timeout) => {
                end(&mut child)?;
                let end = if first { End::RestNotWithin(limits.rest) } else { End::FirstNotWithin(limits.first) };
                return Ok((lines, end));
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    // its output is closed, so that it has little left to do
    while child.try_wait().map_err(|e| format!("{name}: {e}"))?.is_none() {
        if Instant::now() > deadline {
            end(&mut child)?;
            return Ok((lines, End::RestNotWithin(limits.rest)));
        }
        thread::sleep(Duration::from_millis(5));
    }
    let status = child.wait().map_err(|e| format!("{name}: {e}"))?;
    if status.success() {
        return Ok((lines, End::Success));
    }
    let said = errors.join().unwrap_or_default();
    Ok((lines, End::Failure(if said.is_empty() { status.to_string() } else { said })))
}

/// The last lines that are not empty.
fn tail(from: impl Read) -> String {
    let mut last = VecDeque::new();
    for line in BufReader::new(from).lines().map_while(Result::ok).filter(|l| !l.trim().is_empty()) {
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

fn end(child: &mut Child) -> Result<(), String> {
    if cfg!(unix) {
        // where there is no such program, the child alone is ended below
        let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).stderr(Stdio::null()).status();
    }
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
    fn a_program_that_is_not_there_is_named() {
        let limits = Limits { first: Duration::ZERO, rest: Duration::ZERO };
        let error = run(Command::new("no-such-program"), limits).unwrap_err();
        assert!(error.starts_with("no-such-program did not start: "), "{error}");
    }
}
