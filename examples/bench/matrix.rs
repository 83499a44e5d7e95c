//! In: what was asked for; out: the cells, in the order in which they are run. Knows no processes.

use crate::cell::{Cell, Program, Weights};
use crate::sizes::{Model, Phase, Scale};

/// kiln's modes.
pub const MODES: &[&str] = &["eager", "recorded", "fused", "tuned"];
/// kiln's precisions.
pub const PRECISIONS: &[&str] = &["highest", "high", "medium", "f16"];
/// Those of products on matrix units, which CPUs lack.
pub const ON_UNITS: [&str; 2] = ["high", "medium"];

/// How PyTorch runs a model; with `sdpa-` before it, GPTlite with one linear for Q, K and V and
/// `scaled_dot_product_attention`.
const PYTORCH: &[&str] = &[
    "eager",
    "graph",
    "compile",
    "compile-fullgraph",
    "reduce-overhead",
    "reduce-overhead-fullgraph",
    "max-autotune",
    "max-autotune-fullgraph",
];
const PYTORCH_PRECISIONS: &[&str] = &["f32", "tf32", "f16"];

/// Where a variant stands among those of its program; GPTlite's second form after the first.
pub fn position(cell: &Cell) -> (bool, usize) {
    let plain = cell.variant.strip_prefix("sdpa-");
    let all = if cell.program == Program::Pytorch { PYTORCH } else { MODES };
    let at = all.iter().position(|v| *v == plain.unwrap_or(&cell.variant));
    (plain.is_some(), at.unwrap_or(all.len()))
}

/// Which cells.
pub struct Wanted {
    pub models: Vec<Model>,
    pub weights: Vec<Weights>,
    pub phases: Vec<Phase>,
    pub modes: Vec<String>,
    pub precisions: Vec<String>,
    pub compare: Vec<Program>,
    /// Patterns of ids, of which one must fit; all do if there is none.
    pub only: Vec<String>,
}

/// Has variants with fullgraph follow all others of their model, weights and phase.
pub fn fullgraph_last(cells: &mut [Cell]) {
    let of = |c: &Cell| (c.model, c.weights, c.phase);
    cells.chunk_by_mut(|a, b| of(a) == of(b)).for_each(|part| part.sort_by_key(|c| c.without_fullgraph().is_some()));
}

/// The cells of an adapter. Those that are compared follow each other, so that a machine that warms up or is shared does
/// the same to all of them. PyTorch runs on a CPU without CUDA graphs and without narrower products.
pub fn cells(wanted: &Wanted, scale: Scale, cpu: bool) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &model in &wanted.models {
        for &weights in &wanted.weights {
            for &phase in &wanted.phases {
                let mut add = |program, variant: &str, precision: &str| {
                    let (variant, precision) = (variant.to_owned(), precision.to_owned());
                    cells.push(Cell { model, scale, weights, phase, program, variant, precision });
                };
                if wanted.compare.contains(&Program::Pytorch) {
                    for precision in PYTORCH_PRECISIONS.iter().filter(|p| !cpu || **p == "f32") {
                        for variant in PYTORCH.iter().filter(|v| !cpu || **v != "graph") {
                            add(Program::Pytorch, variant, precision);
                            if model == Model::Gptlite {
                                add(Program::Pytorch, &format!("sdpa-{variant}"), precision);
                            }
                        }
                    }
                }
                for precision in wanted.precisions.iter().filter(|p| !cpu || !ON_UNITS.contains(&p.as_str())) {
                    for mode in &wanted.modes {
                        add(Program::Kiln, mode, precision);
                    }
                }
                if wanted.compare.contains(&Program::Burn) {
                    add(Program::Burn, "fusion", "f32");
                }
                if wanted.compare.contains(&Program::Meganeura) {
                    add(Program::Meganeura, "session", "f32");
                    // its forward pass takes f16 matrix units where there are some
                    if !cpu {
                        add(Program::Meganeura, "session", "mixed");
                    }
                }
            }
        }
    }
    cells.retain(|c| wanted.only.is_empty() || wanted.only.iter().any(|pattern| c.matches(pattern)));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(compare: Vec<Program>, only: &[&str]) -> Wanted {
        Wanted {
            models: vec![Model::Gptlite, Model::Deep],
            weights: vec![Weights::He],
            phases: vec![Phase::Infer],
            modes: MODES[..3].iter().map(|m| (*m).to_owned()).collect(),
            precisions: vec!["highest".to_owned()],
            compare,
            only: only.iter().map(|o| (*o).to_owned()).collect(),
        }
    }

    #[test]
    fn cells_that_are_compared_follow_each_other() {
        let all = cells(&wanted(vec![Program::Pytorch, Program::Meganeura], &[]), Scale::Full, false);
        // GPTlite: 3 precisions of 8 variants in two forms; deep: one form
        assert_eq!(all.len(), (48 + 3 + 2) + (24 + 3 + 2));
        let last = all.iter().rposition(|c| c.model == Model::Gptlite).unwrap();
        assert!(all[..=last].iter().all(|c| c.model == Model::Gptlite));
    }

    #[test]
    fn patterns_leave_only_what_they_name() {
        let only = ["pytorch/*/*/*/*/sdpa-graph/f32", "kiln/deep"];
        let ids: Vec<String> =
            cells(&wanted(vec![Program::Pytorch], &only), Scale::Full, false).iter().map(Cell::to_string).collect();
        assert_eq!(
            ids,
            [
                "pytorch/gptlite/full/he/infer/sdpa-graph/f32",
                "kiln/deep/full/he/infer/eager/highest",
                "kiln/deep/full/he/infer/recorded/highest",
                "kiln/deep/full/he/infer/fused/highest"
            ]
        );
    }

    #[test]
    fn variants_with_fullgraph_follow_what_compiles_the_same() {
        let only = ["pytorch/*/*/*/*/compile,compile-fullgraph,max-autotune,max-autotune-fullgraph/f32,f16"];
        let mut all = cells(&wanted(vec![Program::Pytorch], &only), Scale::Full, false);
        fullgraph_last(&mut all);
        let ids: Vec<String> = all.iter().map(|c| format!("{}/{}/{}", c.model, c.variant, c.precision)).collect();
        let of = |model: &str, end: &str| {
            let cell = |precision, mode| format!("{model}/{mode}{end}/{precision}");
            ["f32", "f16"].map(|p| ["compile", "max-autotune"].map(|mode| cell(p, mode))).concat()
        };
        let expected = ["gptlite", "deep"].map(|m| [of(m, ""), of(m, "-fullgraph")].concat()).concat();
        assert_eq!(ids, expected);
    }

    #[test]
    fn a_cpu_has_neither_cuda_graphs_nor_tf32() {
        let all = cells(&wanted(vec![Program::Pytorch, Program::Meganeura], &[]), Scale::Small, true);
        assert!(all.iter().all(|c| !c.variant.ends_with("graph") || c.variant.ends_with("fullgraph")));
        assert!(all.iter().all(|c| c.precision == "f32" || c.program == Program::Kiln));
    }
}
