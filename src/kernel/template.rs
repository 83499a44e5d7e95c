//! In: a kernel's name, where its parameters are and the values of its key; out: WGSL, from the templates in shaders/.

use super::ParamSpace;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Value, context};
use std::sync::LazyLock;

macro_rules! templates {
    ($($name:literal),* $(,)?) => { &[$(($name, include_str!(concat!("../../shaders/", $name)))),*] };
}

const TEMPLATES: &[(&str, &str)] = templates![
    "shared/params.wgsl",
    "shared/group.wgsl",
    "shared/main.wgsl",
    "shared/main_row.wgsl",
    "shared/lanes.wgsl",
    "shared/sum_lanes.wgsl",
    "shared/merge.wgsl",
    "shared/attend.wgsl",
    "shared/attend_block.wgsl",
    "shared/attend_grad.wgsl",
    "shared/attend_grad_factors.wgsl",
    "shared/attend_grad_pairs.wgsl",
    "shared/attend_grad_tile.wgsl",
    "shared/attend_grad_whole.wgsl",
    "shared/attend_place.wgsl",
    "shared/attend_products.wgsl",
    "shared/attend_rows.wgsl",
    "shared/attend_usual.wgsl",
    "shared/attend_weights.wgsl",
    "shared/chain.wgsl",
    "shared/halves.wgsl",
    "shared/heads.wgsl",
    "shared/integer.wgsl",
    "shared/keys.wgsl",
    "shared/mask.wgsl",
    "shared/philox.wgsl",
    "shared/product.wgsl",
    "shared/product_blocks.wgsl",
    "shared/product_epilogue.wgsl",
    "shared/product_scales.wgsl",
    "shared/product_sums.wgsl",
    "shared/product_tile.wgsl",
    "shared/product_units.wgsl",
    "shared/rectangle.wgsl",
    "shared/rows.wgsl",
    "shared/stack.wgsl",
    "shared/stack_finish.wgsl",
    "shared/stack_rows.wgsl",
    "shared/stack_weights.wgsl",
    "shared/units.wgsl",
    "adam.wgsl",
    "attention.wgsl",
    "attention_direct.wgsl",
    "attention_units.wgsl",
    "attention_grad.wgsl",
    "attention_grad_direct.wgsl",
    "attention_grad_units.wgsl",
    "attention_stats.wgsl",
    "cross_entropy.wgsl",
    "cross_entropy_grad.wgsl",
    "dropout.wgsl",
    "elementwise.wgsl",
    "exponents.wgsl",
    "fill.wgsl",
    "gather.wgsl",
    "linear_stack.wgsl",
    "linear_stack_units.wgsl",
    "magnitude.wgsl",
    "matmul.wgsl",
    "matmul_direct.wgsl",
    "matmul_units.wgsl",
    "norm.wgsl",
    "norm_grad.wgsl",
    "norm_param_grad.wgsl",
    "pack_weights.wgsl",
    "probe.wgsl",
    "reduce.wgsl",
    "scatter.wgsl",
    "softmax.wgsl",
    "softmax_grad.wgsl",
    "sum_parts.wgsl",
];

static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true).build();
    env.set_syntax(syntax.expect("the delimiters are the default ones, which differ"));
    env.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
    for (name, text) in TEMPLATES {
        env.add_template(name, text).expect("the templates are a part of the crate; tests parse each");
    }
    env
});

/// A number that changes with the text of any template: the CRC-32 of all.
pub fn fingerprint() -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for (name, text) in TEMPLATES {
        hasher.update(name.as_bytes());
        hasher.update(text.as_bytes());
    }
    hasher.finalize()
}

/// Renders `NAME.wgsl`. Its variables come from a key alone, so a failure is a fault of the template.
pub fn render(name: &str, params: ParamSpace, values: Value) -> String {
    let values = context! { immediate => params == ParamSpace::Immediate, ..values };
    let template = ENVIRONMENT.get_template(&format!("{name}.wgsl")).expect("every kernel's is in the list");
    template.render(values).unwrap_or_else(|e| panic!("template {name}.wgsl does not render: {e:#}"))
}

/// Renders a text that imports templates, for tests of what they share.
#[cfg(test)]
pub fn render_text(text: &str, values: Value) -> String {
    ENVIRONMENT.render_str(text, values).unwrap_or_else(|e| panic!("the text does not render: {e:#}\n{text}"))
}
