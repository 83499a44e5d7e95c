{% if last %}
// Gradient of a norm's parameters, second stage: columns of (chunks, planes · width) are summed, the first plane into
// dγ{{ "" if rms else " and the second into dβ" }}.
{% elif rms %}
// Gradient of an RMS norm's γ, first stage: of each chunk of rows the column sums of dy · x · rstd.
{% else %}
// Gradient of a layer norm's γ and β, first stage: of each chunk of rows the column sums of dy · (x - mean) · rstd and
// of dy, as (chunks, 2, width).
{% endif %}
// One workgroup does {{ columns }} neighbouring columns{{ " of four" if vec }} of a chunk{{ ", all of which is one" if last }}, in {{ lines }} line{{ "s" if lines > 1 }}.
// Order of sums: {{ "line l takes rows l, l + LINES, … in turn; then lines in halves, l and l + LINES / 2 first" if lines > 1 else "rows in turn" }}.
{% if f16 %}
enable f16;
{% endif %}
{% set T = "vec4<f32>" if vec else "f32" %}

struct Params {
    groups: u32,
    rows: u32,
    width: u32, // in what one invocation sums
    blocks: u32, // workgroups side by side
    chunk: u32, // rows of a chunk
    first: u32, // of the statistics
    first_chunk: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
{% for name, access, type in bindings %}
@group(0) @binding({{ loop.index }}) var<storage, {{ access }}> {{ name }}: array<{{ type }}>;
{% endfor %}

const COLUMNS: u32 = {{ columns }}u;
const LINES: u32 = {{ lines }}u;

{% include "shared/group.wgsl" %}

struct Partial {
    gamma: {{ T }},
{% if beta %}
    beta: {{ T }},
{% endif %}
}

fn add(a: Partial, b: Partial) -> Partial {
    return Partial(a.gamma + b.gamma{{ ", a.beta + b.beta" if beta }});
}

fn term(row: u32, column: u32) -> Partial {
{% if last %}
    return Partial(partials[row * p.width + column]);
{% else %}
    let d = {{ T }}(dy[row * p.width + column]);
{% if rms %}
    return Partial(d * ({{ T }}(x[row * p.width + column]) * rstds[p.first + row]));
{% else %}
    return Partial(d * (({{ T }}(x[row * p.width + column]) - means[p.first + row]) * rstds[p.first + row]), d);
{% endif %}
{% endif %}
}

fn store(chunk: u32, column: u32, sum: Partial) {
{% if not last %}
    let at = (p.first_chunk + chunk) * {{ 2 if beta else 1 }}u * p.width + column;
    partials[at] = sum.gamma;
{% if beta %}
    partials[at + p.width] = sum.beta;
{% endif %}
{% elif rms %}
    dgamma[column] = {{ stored }}(sum.gamma);
{% else %}
    let half = p.width / 2u;
    if column < half {
        dgamma[column] = {{ stored }}(sum.gamma);
    } else {
        dbeta[column - half] = {{ stored }}(sum.gamma);
    }
{% endif %}
}
{% if lines > 1 %}

var<workgroup> tile: array<Partial, {{ columns * lines }}>;
{% endif %}

@compute @workgroup_size({{ columns * lines }})
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let group = group_index(wg, grid);
    if group >= p.groups {
        return;
    }
    let chunk = group / p.blocks;
    let column = group % p.blocks * COLUMNS + index % COLUMNS;
    let line = index / COLUMNS;
    let low = chunk * p.chunk;
    // columns past the end sum nothing
    let high = select(low, min(low + p.chunk, p.rows), column < p.width);
    var sum = Partial({{ T }}(0.0){{ ", " ~ T ~ "(0.0)" if beta }});
    for (var row = low + line; row < high; row += LINES) {
        sum = add(sum, term(row, column));
    }
{% if lines > 1 %}
    tile[index] = sum;
    for (var half = LINES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if line < half {
            tile[index] = add(tile[index], tile[index + half * COLUMNS]);
        }
    }
    sum = tile[index];
{% endif %}
    if line == 0u && column < p.width {
        store(chunk, column, sum);
    }
}
