//! What the benches share. In: a graph or a program; out: criterion's times of it by the device's clock. Knows no ops.
#![allow(dead_code, reason = "each bench uses its own part")]

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput};
use kiln::MatmulPrecision;
use kiln::gpu::AdapterChoice;
use kiln::graph::{Builder, DType, Graph, GraphError, TensorType, ValueId};
use kiln::session::{CompileOptions, Program, Session};
use kiln::tensor::Tensor;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The best adapter, or the one that the variable `KILN_BENCH_ADAPTER` names a part of; without one, benches say that they
/// are skipped.
pub fn session() -> Option<Session> {
    Session::open_blocking(&adapter()).map_err(|error| eprintln!("skipped: {error}")).ok()
}

/// Which adapter [`session`] opens.
pub fn adapter() -> AdapterChoice {
    std::env::var("KILN_BENCH_ADAPTER").map_or(AdapterChoice::Best, AdapterChoice::Named)
}

/// A group whose ids hold the device's name, short enough that all of a file's benches take minutes.
pub fn group<'c>(c: &'c mut Criterion, name: &str, session: &Session) -> BenchmarkGroup<'c, WallTime> {
    let mut group = c.benchmark_group(format!("{name}/{}", session.adapter().name));
    let (warm_up, measure) = if session.caps().cpu { (100, 500) } else { (300, 1500) };
    group.sample_size(10).warm_up_time(Duration::from_millis(warm_up));
    group.measurement_time(Duration::from_millis(measure));
    group
}

/// The element types that the device computes in, and what they are called in ids.
pub fn dtypes(session: &Session) -> Vec<(DType, &'static str)> {
    let mut all = vec![(DType::F32, "f32")];
    if session.caps().f16 {
        all.push((DType::F16, "f16"));
    }
    all
}

/// The element types that the device computes in, with how exact products are, and what both are called in ids. Of
/// operands that are f16 already there is one way.
pub fn precisions(session: &Session) -> Vec<(DType, MatmulPrecision, &'static str)> {
    use MatmulPrecision::{High, Highest, Medium};
    let mut all: Vec<_> = dtypes(session).into_iter().map(|(dtype, name)| (dtype, Highest, name)).collect();
    if session.caps().units.is_some() {
        all.extend([(DType::F32, High, "high"), (DType::F32, Medium, "medium")]);
    }
    all
}

/// A size, or on a CPU a fraction of it.
pub fn scaled(session: &Session, size: usize, by: usize) -> usize {
    if session.caps().cpu { size / by } else { size }
}

/// Random numbers in −1..1; classes for integers.
pub fn random(ty: &TensorType, seed: u64) -> Tensor {
    let mut state = seed;
    let values: Vec<f64> = (0..ty.shape.elements())
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let unit = (state >> 33) as f64 / f64::from(1u32 << 31);
            if ty.dtype.is_float() { 2.0 * unit - 1.0 } else { (unit * 2.0).floor() }
        })
        .collect();
    Tensor::from_f64(ty.clone(), &values)
}

/// A program of a graph with random parameters and states.
pub fn program(session: &Session, graph: &Graph, options: &CompileOptions) -> Program {
    let storages = graph.layout.iter().map(|(_, s)| (s.name.clone(), TensorType::new(s.dtype, s.shape.clone())));
    let params: BTreeMap<String, Tensor> =
        storages.enumerate().map(|(i, (name, ty))| (name, random(&ty, i as u64 + 1))).collect();
    let program = session.compile(graph, &params, options).expect("the graph compiles");
    let names: Vec<String> = program.states().map(str::to_owned).collect();
    for (i, name) in names.iter().enumerate() {
        let ty = program.state_type(name).expect("the state is there").clone();
        program.write_state(name, &random(&ty, 1000 + i as u64)).expect("the state is written");
    }
    program
}

/// The time of a run: its dispatches', from the first's begin to the last's end, where the device has timestamps; else
/// from submit to done by the host's clock.
pub fn run_time(session: &Session, program: &Program, inputs: &[(&str, &Tensor)]) -> Duration {
    if session.caps().timestamps {
        let (_, frame) = program.profile(inputs).expect("a run ends");
        return frame.gpu_ns().map_or(Duration::ZERO, Duration::from_nanos);
    }
    let begin = Instant::now();
    program.submit_unread(inputs).expect("a run starts").wait().expect("a run ends");
    begin.elapsed()
}

/// An id, with the clock where it is not the device's.
pub fn id(session: &Session, words: impl Into<String>) -> String {
    let words = words.into();
    if session.caps().timestamps { words } else { format!("{words} (host clock)") }
}

/// Times a graph whose inputs are all states.
pub fn time(
    group: &mut BenchmarkGroup<WallTime>,
    session: &Session,
    words: impl Into<String>,
    throughput: Throughput,
    graph: &Graph,
) {
    time_at(group, session, words, throughput, graph, MatmulPrecision::Highest);
}

/// Times a graph whose inputs are all states, with products of a precision.
pub fn time_at(
    group: &mut BenchmarkGroup<WallTime>,
    session: &Session,
    words: impl Into<String>,
    throughput: Throughput,
    graph: &Graph,
    precision: MatmulPrecision,
) {
    let options = CompileOptions { precision, ..CompileOptions::default() };
    time_program(group, session, words, throughput, &program(session, graph, &options));
}

/// Times a program whose inputs are all states.
pub fn time_program(
    group: &mut BenchmarkGroup<WallTime>,
    session: &Session,
    words: impl Into<String>,
    throughput: Throughput,
    program: &Program,
) {
    group.throughput(throughput);
    group.bench_function(id(session, words), |b| {
        b.iter_custom(|runs| (0..runs).map(|_| run_time(session, program, &[])).sum());
    });
}

/// An input that stays on the device and that no run changes.
pub fn resident(b: &mut Builder, name: &str, ty: TensorType) -> Result<ValueId, GraphError> {
    let x = b.state(name, ty)?;
    b.update(x, x)?;
    Ok(x)
}
