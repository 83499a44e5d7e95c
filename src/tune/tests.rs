//! Candidates that do not compile, whose results differ, or that fit no buffer, on the machine's adapter.

use super::measure::{Candidate, Outcome, measure};
use super::work::Work;
use super::{Answer, Device, questions};
use crate::caps::{DeviceCaps, MatmulPrecision};
use crate::gpu::{AdapterChoice, Gpu, GpuError};
use crate::graph::{Builder, DType, Graph, TensorType};
use crate::kernel::{Choices, Config, KernelKey};
use crate::select::{Decision, Selected, select};
use std::time::Duration;

/// The adapter, as GPUs are used. Without one a test says so and is over; under `KILN_REQUIRE_ADAPTER` it fails.
fn gpu() -> Option<(Gpu, DeviceCaps)> {
    match pollster::block_on(Gpu::open(&AdapterChoice::Best)) {
        Ok(gpu) => {
            let caps = DeviceCaps { cpu: false, ..gpu.caps().clone() };
            Some((gpu, caps))
        }
        Err(GpuError::NoAdapter { .. }) if std::env::var_os("KILN_REQUIRE_ADAPTER").is_none() => {
            println!("skipped: no adapter");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// (40, 64) · (64, 48).
fn product() -> Graph {
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [40, 64])).unwrap();
    let y = b.input("y", TensorType::new(DType::F32, [64, 48])).unwrap();
    let z = b.matmul(x, y).unwrap();
    b.output("z", z).unwrap();
    b.finish().unwrap()
}

/// The product with each of these configurations.
fn candidates(caps: &DeviceCaps, count: usize) -> (Decision, Vec<(Config, Selected)>) {
    let graph = product();
    let selected = select(&graph, caps, MatmulPrecision::Highest, &Choices::default()).unwrap();
    let decision = questions(&selected, |_| false).remove(0);
    let with = |config: Config| {
        let mut choices = Choices::default();
        choices.insert(decision.problem.clone(), config);
        (config, select(&graph, caps, MatmulPrecision::Highest, &choices).unwrap())
    };
    let all = decision.configs.iter().take(count).map(|c| with(*c)).collect();
    (decision, all)
}

#[test]
fn candidates_that_fail_or_disagree_are_left_out_and_the_rest_is_timed() {
    let Some((gpu, caps)) = gpu() else { return };
    let (decision, mut all) = candidates(&caps, 4);
    // one does not compile: no device has so many invocations
    for step in &mut all[1].1.steps {
        if let KernelKey::Matmul(key) = &mut step.launch.key {
            (key.tile.m, key.tile.n, key.tile.tm, key.tile.tn) = (4096, 4096, 4, 4);
        }
    }
    // one leaves out the last terms of each sum
    for step in all[2].1.steps.iter_mut().filter(|s| matches!(s.launch.key, KernelKey::Matmul(_))) {
        step.launch.params[3] -= 8;
    }
    let works = all.iter().map(|(config, s)| Candidate { config: *config, work: Work::of(s, &decision) }).collect();
    let device = Device { gpu: &gpu, caps: &caps, precision: MatmulPrecision::Highest, checked: false };
    let outcome = measure(&device, works, None).unwrap();
    let dropped: Vec<(Config, &str)> = outcome.dropped.iter().map(|(c, why)| (*c, why.as_str())).collect();
    assert_eq!(dropped.len(), 2, "{outcome:?}");
    assert_eq!((dropped[0].0, dropped[1].0), (all[1].0, all[2].0));
    assert!(dropped[0].1.starts_with("kernel matmul of \"matmul\" does not compile"), "{outcome:?}");
    assert!(dropped[1].1.starts_with("its results are off by"), "{outcome:?}");
    let mut timed: Vec<Config> = outcome.times.iter().map(|(c, _)| *c).collect();
    assert_eq!(timed[0], all[0].0, "the model's choice comes first: {outcome:?}");
    timed.retain(|c| *c != all[0].0);
    assert_eq!(timed, [all[3].0]);
    assert!(outcome.times.iter().all(|(_, time)| !time.is_zero()), "{outcome:?}");
}

#[test]
fn the_model_s_own_choice_must_run() {
    let Some((gpu, caps)) = gpu() else { return };
    let (decision, mut all) = candidates(&caps, 1);
    if let KernelKey::Matmul(key) = &mut all[0].1.steps[0].launch.key {
        (key.tile.m, key.tile.n) = (4096, 4096);
    }
    let works = vec![Candidate { config: all[0].0, work: Work::of(&all[0].1, &decision) }];
    let device = Device { gpu: &gpu, caps: &caps, precision: MatmulPrecision::Highest, checked: false };
    let error = measure(&device, works, None).unwrap_err();
    assert!(matches!(error, GpuError::Kernel { .. }), "{error}");
}

#[test]
fn the_best_is_clearly_faster_and_slices_are_worth_their_sums() {
    let graph = product();
    let selected = select(&graph, &DeviceCaps::PORTABLE, MatmulPrecision::Highest, &Choices::default()).unwrap();
    let [first, second] = selected.decisions[0].configs[..2] else { panic!("{:?}", selected.decisions) };
    let (whole, slices) = (Config::Slice(0), Config::Slice);
    let best = |times: &[(Config, u64)]| {
        let decision = Decision { config: times[0].0, ..selected.decisions[0].clone() };
        let times = times.iter().map(|(config, ns)| (*config, Duration::from_nanos(*ns))).collect();
        Answer::of(&decision, &graph, Outcome { times, dropped: Vec::new() }, &mut Vec::new()).best
    };
    assert_eq!(best(&[(first, 1000), (second, 990)]), first);
    assert_eq!(best(&[(first, 1000), (second, 970)]), second);
    assert_eq!(best(&[(whole, 1000), (slices(512), 860)]), whole);
    assert_eq!(best(&[(whole, 1000), (slices(512), 840), (slices(256), 845)]), slices(512));
    assert_eq!(best(&[(slices(512), 1000), (slices(256), 970)]), slices(256));
    assert_eq!(best(&[(slices(512), 1000), (whole, 970)]), whole);
}
