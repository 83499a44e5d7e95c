//! Host memory over many runs: what is made for a run is given back. One test at a time, since it reads the whole
//! process.

mod device;

use device::{Named, fill, own_session};
use kiln::graph::{Builder, DType, Graph, TensorType};
use kiln::session::CompileOptions;
use std::sync::{Mutex, PoisonError};

static ALONE: Mutex<()> = Mutex::new(());

/// Bytes of the process in memory, where the system says so.
fn resident() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<i64>().ok()? * 1024)
}

/// Runs `step` and fails if memory grows by more than 1 MiB over its second half; `settle` waits for what is in flight.
fn flat(steps: usize, mut step: impl FnMut(usize), settle: impl Fn()) {
    for i in 0..steps / 2 {
        step(i);
    }
    settle();
    let before = resident();
    for i in steps / 2..steps {
        step(i);
    }
    settle();
    match before.zip(resident()) {
        Some((before, after)) => assert!(after - before <= 1 << 20, "grew by {} bytes", after - before),
        None => println!("memory not measured: no /proc/self/status"),
    }
}

fn small() -> Graph {
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [256])).unwrap();
    let y = b.scale(x, 3.0).unwrap();
    b.output("y", y).unwrap();
    b.finish().unwrap()
}

#[test]
fn e20_a_thousand_replays_with_changing_inputs() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(session) = own_session() else { return };
    let program = session.compile(&small(), &Named::new(), &CompileOptions::default()).unwrap();
    let step = |step| {
        let x = fill(&[256], |i| (step + i) as f64);
        assert_eq!(program.run(&[("x", &x)]).unwrap()["y"].to_f32()[255], 3.0 * (step + 255) as f32);
    };
    flat(2000, step, || ());
}

#[test]
fn d12_ten_thousand_submits_that_nobody_waits_for() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(session) = own_session() else { return };
    let program = session.compile(&small(), &Named::new(), &CompileOptions::default()).unwrap();
    let x = fill(&[256], |i| i as f64);
    let submit = |step| {
        // some with results that are dropped on their way
        let run = if step % 4 == 0 { program.submit(&[("x", &x)]) } else { program.submit_unread(&[("x", &x)]) };
        run.unwrap();
    };
    let settle = || assert_eq!(program.run(&[("x", &x)]).unwrap()["y"].to_f32()[2], 6.0);
    flat(10_000, submit, settle);
}

#[test]
fn d12_programs_made_and_dropped() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(session) = own_session() else { return };
    let x = fill(&[256], |i| i as f64);
    let mut runs = 0;
    let mut step = |_| {
        let program = session.compile(&small(), &Named::new(), &CompileOptions::default()).unwrap();
        program.run(&[("x", &x)]).unwrap();
        runs += 1;
    };
    // drivers keep some of what they compile
    (0..20).for_each(&mut step);
    let before = resident();
    (0..20).for_each(&mut step);
    if let Some((before, after)) = before.zip(resident()) {
        assert!(after - before <= 16 << 20, "grew by {} bytes over {runs} programs", after - before);
    }
}
