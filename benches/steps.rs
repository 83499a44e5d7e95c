//! Time of whole runs of the seed's three models, forward passes and training steps, in each mode and precision, from
//! submit to done by the host's clock, as `examples/seed_models` measures it. Throughput is in samples: sequences of
//! GPTlite, rows of a DNN. Scaled down on a CPU that acts as a GPU; few runs, as some take tenths of a second.

#[allow(dead_code, reason = "the example uses the rest")]
#[path = "../examples/seed_models/measure.rs"]
mod measure;
#[allow(dead_code, reason = "the example uses the rest")]
#[path = "../examples/seed_models/models.rs"]
mod models;
#[path = "../examples/seed_models/sizes.rs"]
mod sizes;
mod timing;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kiln::CompileMode;
use kiln::graph::DType;
use kiln::model::{Init, init};
use kiln::session::{CompileOptions, Mode, Session};
use kiln::train::{LossScaling, Optimiser, Precision, Schedule, TrainOptions};
use measure::Job;
use sizes::{Model, Phase, Scale, Sizes};
use std::time::Duration;

/// The last is tuned: fused, with the kernels' fastest configurations.
const MODES: [(Mode, CompileMode); 4] = [
    (Mode::Eager, CompileMode::Default),
    (Mode::Recorded, CompileMode::Default),
    (Mode::Fused, CompileMode::Default),
    (Mode::Fused, CompileMode::MaxAutotune),
];

fn steps(c: &mut Criterion) {
    let Some(session) = timing::session() else { return };
    let scale = if session.caps().cpu { Scale::Small } else { Scale::Full };
    let mut group = timing::group(c, "steps", &session);
    for model in [Model::Gptlite, Model::Deep, Model::Wide] {
        let sizes = Sizes::of(model, scale);
        for phase in [Phase::Infer, Phase::Train] {
            for (dtype, precision, name) in timing::precisions(&session) {
                for (mode, compile_mode) in MODES {
                    let options = CompileOptions { precision, compile_mode, ..CompileOptions::mode(mode) };
                    let job = job(&session, sizes, phase, dtype, &options);
                    let mode = match compile_mode {
                        CompileMode::Default => mode.to_string(),
                        CompileMode::MaxAutotune => "tuned".to_owned(),
                    };
                    group.throughput(Throughput::Elements(sizes.samples() as u64));
                    group.bench_function(format!("{model}/{scale}/{phase}/{mode}/{name} (host clock)"), |b| {
                        b.iter_custom(|runs| {
                            let waited = job.waited(runs as usize).expect("a run ends");
                            Duration::from_secs_f64(waited.iter().map(|w| w.wall_ms).sum::<f64>() / 1e3)
                        });
                    });
                }
            }
        }
    }
    group.finish();
}

fn job(session: &Session, sizes: Sizes, phase: Phase, dtype: DType, options: &CompileOptions) -> Job {
    let made = match phase {
        Phase::Infer => {
            let work = sizes.infer(dtype).expect("the sizes are valid");
            let params = init(&work.graph.layout, Init::He, 0).expect("the models' parameters have rules");
            Job::infer(session, work, &params, options)
        }
        Phase::Train => {
            let work = sizes.train().expect("the sizes are valid");
            let params = init(&work.graph.layout, Init::He, 0).expect("the models' parameters have rules");
            let train = TrainOptions {
                optimiser: Optimiser::Adam { beta1: 0.5, beta2: 0.5, eps: 1e-8, weight_decay: 0.0 },
                learning_rate: Schedule::constant(2e-4),
                precision: match dtype {
                    DType::F16 => Precision::F16(LossScaling::default()),
                    _ => Precision::F32,
                },
                // the deep model's activations outgrow f16 within a few steps
                skip_non_finite: dtype == DType::F16,
                ..TrainOptions::default()
            };
            Job::train(session, work, &params, &train, options)
        }
    };
    let job = made.expect("a model compiles");
    job.first().expect("a run ends");
    job
}

criterion_group!(benches, steps);
criterion_main!(benches);
