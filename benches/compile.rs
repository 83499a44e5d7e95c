//! What it takes to make a program of each of the seed's three models: cold, with nothing kept of an earlier start, and
//! warm, with compiled pipelines and tuned configurations in the cache; weights are made, turned and uploaded, a device
//! is open. Before each group the stages of one start are printed. On a CPU that acts as a GPU sizes are small.
//!
//! Drivers keep shaders of their own accord as well: `__GL_SHADER_DISK_CACHE=0` stops NVIDIA's from doing so, without
//! which cold is only cold the first time.

mod timing;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kiln::cache::CacheDir;
use kiln::graph::Graph;
use kiln::model::{Dnn, DnnConfig, Gptlite, GptliteConfig, Init, init};
use kiln::session::{CompileOptions, Program, Session};
use kiln::tensor::Tensor;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A name, a forward pass and its parameters.
type Model = (&'static str, Graph, BTreeMap<String, Tensor>);

fn models(cpu: bool) -> Result<Vec<Model>, kiln::Error> {
    let (gptlite, rows) = match cpu {
        true => (GptliteConfig::new(65, 2, 96, 3, 64), 64),
        false => (GptliteConfig::small(), 2048),
    };
    let (deep, wide) = match cpu {
        true => (DnnConfig::square(64, 64), DnnConfig::square(512, 3)),
        false => (DnnConfig::deep(), DnnConfig::wide()),
    };
    let graphs = [
        ("gptlite", Gptlite::new(gptlite).build(1, rows)?),
        ("deep", Dnn::new(deep).build(rows)?),
        ("wide", Dnn::new(wide).build(rows)?),
    ];
    let with = |(name, graph): (&'static str, Graph)| {
        let params = init(&graph.layout, Init::He, 0)?;
        Ok((name, graph, params))
    };
    graphs.into_iter().map(with).collect()
}

/// Compiles in a session of its own, and how long that took.
fn start((_, graph, params): &Model, cache: &CacheDir) -> Result<(Program, Duration), kiln::Error> {
    let session = Session::open_blocking(&timing::adapter())?;
    let options = CompileOptions { cache: cache.clone(), ..CompileOptions::default() };
    let begin = Instant::now();
    let program = session.compile(graph, params, &options)?;
    Ok((program, begin.elapsed()))
}

/// Milliseconds of each stage; pipelines are made beside the weights.
fn print_stages(name: &str, (program, whole): &(Program, Duration)) {
    let stages = program.describe().compile;
    let of_stage = |s: &&kiln::trace::HostSpan| s.thread == 0;
    let words = stages.iter().filter(of_stage).map(|s| format!("{} {:.1}", s.name, (s.end - s.begin) as f64 / 1e6));
    let (kernels, longest) = stages
        .iter()
        .filter(|s| s.thread > 0)
        .fold((0, 0), |(count, longest), s| (count + 1, longest.max(s.end - s.begin)));
    println!(
        "{name}: {:.1} ms ({}); {kernels} pipelines, the longest {:.1}",
        whole.as_secs_f64() * 1e3,
        words.collect::<Vec<_>>().join(", "),
        longest as f64 / 1e6
    );
}

fn compile(c: &mut Criterion) {
    let Some(session) = timing::session() else { return };
    let mut group = c.benchmark_group(format!("compile/{}", session.adapter().name));
    group.sample_size(10).warm_up_time(Duration::from_millis(1)).measurement_time(Duration::from_secs(2));
    let dir = tempfile::tempdir().expect("a directory can be made");
    for model in models(session.caps().cpu).expect("the models are valid") {
        let kept = CacheDir::At(dir.path().join(model.0));
        group.throughput(Throughput::Bytes(model.2.values().map(|t| t.bytes().len() as u64).sum()));
        // the first start fills the cache of the second
        for (what, cache) in [("cold", &CacheDir::Off), ("filling", &kept), ("warm", &kept)] {
            print_stages(&format!("{}, {what}", model.0), &start(&model, cache).expect("the model compiles"));
            if what != "filling" {
                group.bench_function(BenchmarkId::new(model.0, what), |b| {
                    b.iter_custom(|times| (0..times).map(|_| start(&model, cache).expect("it compiles").1).sum());
                });
            }
        }
    }
    group.finish();
}

criterion_group!(benches, compile);
criterion_main!(benches);
