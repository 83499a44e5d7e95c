// y[part, row] = the largest biased exponent of |x| in a row: 0 where all is 0 or subnormal, 255 where anything is infinite
// or NaN. Rows may be cut into parts, each with a result of its own.
{% if ways|length > 1 %}
// The first workgroups find those of a matrix's rows, the others those of its columns.
{% endif %}
// Exact: only integers are compared.

struct Params {
    entries: u32, // batch entries
    x_offset: u32, // as all that counts x, in elements of the array{{ ", which are vec4s" if vec else "" }}
    // of each way: workgroups; rows of a batch entry; elements of a row and of a part of it; workgroups for the rows of a
    // batch entry; from one row to the next and along it; exponents of a part
{% for way in ways %}
{% for word in words %}
    {{ way }}_{{ word }}: u32,
{% endfor %}
{% endfor %}
{% for d in range(batch_rank) %}
    batch{{ d }}: u32,
    x_batch{{ d }}: u32,
{% endfor %}
}
{% include "shared/params.wgsl" %}
@group(0) @binding(1) var<storage, read> x: array<{{ "vec4<f32>" if vec else "f32" }}>;
{% for way in ways %}
@group(0) @binding({{ 1 + loop.index }}) var<storage, read_write> y_{{ way }}: array<u32>;
{% endfor %}

{% include "shared/group.wgsl" %}
{% set T = "vec4<u32>" if vec else "u32" %}
{% for way in ways %}
var<workgroup> found_{{ way }}: array<{{ T if way == "across" else "u32" }}, 256>;
{% endfor %}

fn exponent(at: u32) -> {{ T }} {
    return (bitcast<{{ T }}>(x[at]) >> {{ "vec4<u32>(23u)" if vec else "23u" }}) & {{ T }}(255u);
}

// Where a batch entry begins.
fn entry_at(entry: u32) -> u32 {
    var base = p.x_offset;
{% if batch_rank > 0 %}
    var rest = entry;
{% for d in range(batch_rank)|reverse %}
    base += rest % p.batch{{ d }} * p.x_batch{{ d }};
    rest = rest / p.batch{{ d }};
{% endfor %}
{% endif %}
    return base;
}

{# the elements of a row from `at` on that an invocation goes through, `stride` apart, four reads at once: those past the end
   repeat the last one #}
{% macro walk(way, from, stride) %}
        for (var k = part * p.{{ way }}_slice + {{ from }}; k < end; k += {{ 4 * stride }}u) {
{% for i in range(4) %}
            let e{{ i }} = exponent(at + min(k + {{ stride * i }}u, end - 1u) * p.{{ way }}_x_k);
{% endfor %}
            largest = max(max(max(largest, e0), max(e1, e2)), e3);
        }
{% endmacro %}
{% for way in ways %}
{% if way == "across" %}
// Neighbouring rows are contiguous. A workgroup of 256 takes {{ 16 * step }} rows: 16 invocations side by side take {{ "four rows each" if vec else "a row each" }},
// and 16 such groups walk along the rows at once; what they find is gathered in workgroup memory.
{% else %}
// A workgroup of 256 takes eight rows: 32 invocations walk along each{{ ", four numbers at a time" if vec else "" }}; what they find is gathered in
// workgroup memory.
{% endif %}
fn {{ way }}(group: u32, lane: u32) {
    let part = group / (p.{{ way }}_blocks * p.entries);
    let entry = group / p.{{ way }}_blocks % p.entries;
    let end = min((part + 1u) * p.{{ way }}_slice, p.{{ way }}_k);
    let to = part * p.{{ way }}_y_part + entry * p.{{ way }}_rows;
    var largest = {{ T }}(0u);
{% if way == "across" %}
    let row = group % p.across_blocks * {{ 16 * step }}u + lane % 16u * {{ step }}u;
    if row < p.across_rows {
        let at = entry_at(entry) + {{ "row / 4u" if vec else "row" }};
{{ walk(way, "lane / 16u", 16) }}
    }
    found_across[lane] = largest;
    workgroupBarrier();
    if lane < 16u && row < p.across_rows {
        for (var i = 1u; i < 16u; i++) {
            largest = max(largest, found_across[lane + 16u * i]);
        }
{% if vec %}
        y_across[to + row] = largest.x;
        y_across[to + row + 1u] = largest.y;
        y_across[to + row + 2u] = largest.z;
        y_across[to + row + 3u] = largest.w;
{% else %}
        y_across[to + row] = largest;
{% endif %}
    }
{% else %}
    let row = group % p.along_blocks * 8u + lane / 32u;
    if row < p.along_rows {
        let at = entry_at(entry) + row * p.along_x_row;
{{ walk(way, "lane % 32u", 32) }}
    }
    found_along[lane] = {{ "max(max(largest.x, largest.y), max(largest.z, largest.w))" if vec else "largest" }};
    workgroupBarrier();
    for (var half = 16u; half > 0u; half = half / 2u) {
        if lane % 32u < half {
            found_along[lane] = max(found_along[lane], found_along[lane + half]);
        }
        workgroupBarrier();
    }
    if lane % 32u == 0u && row < p.along_rows {
        y_along[to + row] = found_along[lane];
    }
{% endif %}
}

{% endfor %}
@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    var group = group_index(wg, n);
{% for way in ways %}
    if group < p.{{ way }}_groups {
        {{ way }}(group, lane);
        return;
    }
{% if not loop.last %}
    group -= p.{{ way }}_groups;
{% endif %}
{% endfor %}
}
