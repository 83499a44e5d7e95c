// y[part, row] = the largest biased exponent of |x| in a row: 0 where all is 0 or subnormal, 255 where anything is infinite
// or NaN. Rows may be cut into parts, each with a result of its own.
//
{% if across %}
// Neighbouring rows are contiguous. A workgroup of 256 takes {{ 16 * step }} rows: 16 invocations side by side take {{ "four rows each" if vec else "a row each" }},
// and 16 such groups walk along the rows at once; what they find is gathered in workgroup memory.
{% else %}
// A workgroup of 256 takes eight rows: 32 invocations walk along each{{ ", four numbers at a time" if vec else "" }}; what they find is gathered in
// workgroup memory.
{% endif %}
// Exact: only integers are compared.

struct Params {
    groups: u32,
    rows: u32,
    k: u32, // as all that follows in elements of the array{{ ", which are vec4s" if vec else "" }}, where it counts x
    slice: u32, // of k, for each part
    blocks: u32, // workgroups for the rows of a batch entry
    entries: u32, // batch entries
    x_offset: u32,
    x_row: u32,
    x_k: u32,
    y_part: u32, // between parts
{% for d in range(batch_rank) %}
    batch{{ d }}: u32,
    x_batch{{ d }}: u32,
{% endfor %}
}
{% include "shared/params.wgsl" %}
@group(0) @binding(1) var<storage, read> x: array<{{ "vec4<f32>" if vec else "f32" }}>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

{% include "shared/group.wgsl" %}
{% set T = "vec4<u32>" if vec else "u32" %}
var<workgroup> found: array<{{ T if across else "u32" }}, 256>;

fn exponent(at: u32) -> {{ T }} {
    return (bitcast<{{ T }}>(x[at]) >> {{ "vec4<u32>(23u)" if vec else "23u" }}) & {{ T }}(255u);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let group = group_index(wg, n);
    if group >= p.groups {
        return;
    }
    let part = group / (p.blocks * p.entries);
    let entry = group / p.blocks % p.entries;
    var base = p.x_offset;
{% if batch_rank > 0 %}
    var rest = entry;
{% for d in range(batch_rank)|reverse %}
    base += rest % p.batch{{ d }} * p.x_batch{{ d }};
    rest = rest / p.batch{{ d }};
{% endfor %}
{% endif %}
    let end = min((part + 1u) * p.slice, p.k);
    let to = part * p.y_part + entry * p.rows;
    var largest = {{ T }}(0u);
{% if across %}
    let row = group % p.blocks * {{ 16 * step }}u + lane % 16u * {{ step }}u;
    if row < p.rows {
        let at = base + {{ "row / 4u" if vec else "row" }};
        for (var k = part * p.slice + lane / 16u; k < end; k += 64u) {
            // four reads at once; those past the end repeat the last one
{% for i in range(4) %}
            let e{{ i }} = exponent(at + min(k + {{ 16 * i }}u, end - 1u) * p.x_k);
{% endfor %}
            largest = max(max(max(largest, e0), max(e1, e2)), e3);
        }
    }
    found[lane] = largest;
    workgroupBarrier();
    if lane < 16u && row < p.rows {
        for (var i = 1u; i < 16u; i++) {
            largest = max(largest, found[lane + 16u * i]);
        }
{% if vec %}
        y[to + row] = largest.x;
        y[to + row + 1u] = largest.y;
        y[to + row + 2u] = largest.z;
        y[to + row + 3u] = largest.w;
{% else %}
        y[to + row] = largest;
{% endif %}
    }
{% else %}
    let row = group % p.blocks * 8u + lane / 32u;
    if row < p.rows {
        let at = base + row * p.x_row;
        for (var k = part * p.slice + lane % 32u; k < end; k += 128u) {
            // four reads at once; those past the end repeat the last one
{% for i in range(4) %}
            let e{{ i }} = exponent(at + min(k + {{ 32 * i }}u, end - 1u) * p.x_k);
{% endfor %}
            largest = max(max(max(largest, e0), max(e1, e2)), e3);
        }
    }
{% if vec %}
    found[lane] = max(max(largest.x, largest.y), max(largest.z, largest.w));
{% else %}
    found[lane] = largest;
{% endif %}
    workgroupBarrier();
    for (var half = 16u; half > 0u; half = half / 2u) {
        if lane % 32u < half {
            found[lane] = max(found[lane], found[lane + half]);
        }
        workgroupBarrier();
    }
    if lane % 32u == 0u && row < p.rows {
        y[to + row] = found[lane];
    }
{% endif %}
}
