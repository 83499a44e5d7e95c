//! In: jobs of the panel Live; out: what they give on a device, and their errors. Without an adapter it says so, which
//! `KILN_REQUIRE_ADAPTER` turns into a failure.

use kiln_viewer::live::device::Device;
use kiln_viewer::live::{Backend, Job, Model};

fn device() -> Option<Device> {
    let mut device = Device::default();
    let adapters = device.adapters().unwrap();
    if adapters.is_empty() {
        assert!(std::env::var_os("KILN_REQUIRE_ADAPTER").is_none(), "no adapter runs models");
        println!("skipped: no adapter");
        return None;
    }
    Some(device)
}

/// The mean losses of the first and of the last steps of a training.
fn losses(device: &mut Device, job: &Job, steps: usize) -> [f64; 2] {
    let trace = device.open(job).unwrap();
    assert_eq!(trace.title, job.title());
    let losses: Vec<f64> = (0..steps).map(|_| device.step().unwrap().loss.expect("a training has a loss")).collect();
    let mean = |l: &[f64]| l.iter().sum::<f64>() / l.len() as f64;
    [mean(&losses[..steps / 4]), mean(&losses[steps - steps / 4..])]
}

#[test]
fn a_training_learns_of_batches_that_it_has_not_seen() {
    let Some(mut device) = device() else { return };
    let text = Job { train: true, layers: 1, width: 32, heads: 2, positions: 32, batch: 8, ..Job::default() };
    let [first, last] = losses(&mut device, &text, 80);
    assert!(last < first - 0.3, "text: {first} to {last}");
    let digits = Job { model: Model::Dnn, layers: 2, width: 64, batch: 64, ..text.clone() };
    let [first, last] = losses(&mut device, &digits, 80);
    assert!(last < first - 0.3, "digits: {first} to {last}");
    let half = [Job { half: true, ..text }, Job { half: true, ..digits }];
    if let Err(error) = device.open(&half[0]) {
        return assert!(error.contains("has no f16"), "{error}");
    }
    for job in half {
        let [first, last] = losses(&mut device, &job, 80);
        assert!(last < first - 0.3, "{}: {first} to {last}", job.title());
    }
}

#[test]
fn a_model_that_no_memory_holds_is_refused_in_words_and_another_runs() {
    let Some(mut device) = device() else { return };
    // no card has 4 TB; of a processor's adapter Linux alone says how much it has
    if !cfg!(target_os = "linux") {
        return println!("skipped: the memory that is free is not known here");
    }
    let huge = Job { model: Model::Dnn, layers: 4096, width: 16384, batch: 1, ..Job::default() };
    let error = device.open(&huge).unwrap_err();
    assert!(error.contains("memory"), "{error}");
    assert_eq!(device.step().err().as_deref(), Some("nothing is compiled"));
    let small = Job { model: Model::Dnn, layers: 2, width: 16, batch: 1, ..Job::default() };
    device.open(&small).unwrap();
    assert_eq!(device.step().unwrap().loss, None);
}
