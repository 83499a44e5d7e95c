// y[part, row] = the largest biased exponent of |x| in a row: 0 where all is 0 or subnormal, 255 where anything is infinite
// or NaN. Rows may be cut into parts, each with a result of its own. Each workgroup looks at one operand, and at its rows or,
// where those of a matrix's columns are found too, at its columns.
// Exact: only integers are compared.

struct Params {
{% for operand in operands %}
{% set i = loop.index0 %}
    entries{{ i }}: u32, // batch entries
    x{{ i }}_offset: u32, // as all that counts x, in elements of the array{{ ", which are vec4s" if operand.vec else "" }}
    // of each way: workgroups; rows of a batch entry; elements of a row and of a part of it; workgroups for the rows of a
    // batch entry; from one row to the next and along it; exponents of a part
{% for way in operand.ways %}
{% for word in words %}
    {{ way }}{{ i }}_{{ word }}: u32,
{% endfor %}
{% endfor %}
{% for d in range(operand.batch_rank) %}
    batch{{ i }}_{{ d }}: u32,
    x{{ i }}_batch{{ d }}: u32,
{% endfor %}
{% endfor %}
}
{% include "shared/params.wgsl" %}
{% for operand in operands %}
@group(0) @binding({{ loop.index }}) var<storage, read> x{{ loop.index0 }}: array<{{ "vec4<f32>" if operand.vec else "f32" }}>;
{% endfor %}
{% for operand in operands %}
{% set i = loop.index0 %}
{% for way in operand.ways %}
@group(0) @binding({{ operand.found + loop.index0 }}) var<storage, read_write> y_{{ way }}{{ i }}: array<u32>;
{% endfor %}
{% endfor %}

{% include "shared/group.wgsl" %}
{# the elements of a row from `at` on that an invocation goes through, `stride` apart, four reads at once: those past the end
   repeat the last one #}
{% macro walk(i, way, from, stride) %}
        for (var k = part * p.{{ way }}{{ i }}_slice + {{ from }}; k < end; k += {{ 4 * stride }}u) {
{% for r in range(4) %}
            let e{{ r }} = exponent{{ i }}(at + min(k + {{ stride * r }}u, end - 1u) * p.{{ way }}{{ i }}_x_k);
{% endfor %}
            largest = max(max(max(largest, e0), max(e1, e2)), e3);
        }
{% endmacro %}
{% for operand in operands %}
{% set i = loop.index0 %}
{% set vec = operand.vec %}
{% set T = "vec4<u32>" if vec else "u32" %}
{% set step = 4 if vec else 1 %}
{% for way in operand.ways %}
var<workgroup> found_{{ way }}{{ i }}: array<{{ T if way == "across" else "u32" }}, 256>;
{% endfor %}

fn exponent{{ i }}(at: u32) -> {{ T }} {
    return (bitcast<{{ T }}>(x{{ i }}[at]) >> {{ "vec4<u32>(23u)" if vec else "23u" }}) & {{ T }}(255u);
}

// Where a batch entry begins.
fn entry_at{{ i }}(entry: u32) -> u32 {
    var base = p.x{{ i }}_offset;
{% if operand.batch_rank > 0 %}
    var rest = entry;
{% for d in range(operand.batch_rank)|reverse %}
    base += rest % p.batch{{ i }}_{{ d }} * p.x{{ i }}_batch{{ d }};
    rest = rest / p.batch{{ i }}_{{ d }};
{% endfor %}
{% endif %}
    return base;
}

{% for way in operand.ways %}
{% set p_way = "p." ~ way ~ i %}
{% set y = "y_" ~ way ~ i %}
{% set found = "found_" ~ way ~ i %}
{% if way == "across" %}
// Neighbouring rows are contiguous. A workgroup of 256 takes {{ 16 * step }} rows: 16 invocations side by side take {{ "four rows each" if vec else "a row each" }},
// and 16 such groups walk along the rows at once; what they find is gathered in workgroup memory.
{% else %}
// A workgroup of 256 takes eight rows: 32 invocations walk along each{{ ", four numbers at a time" if vec else "" }}; what they find is gathered in
// workgroup memory.
{% endif %}
fn {{ way }}{{ i }}(group: u32, lane: u32) {
    let part = group / ({{ p_way }}_blocks * p.entries{{ i }});
    let entry = group / {{ p_way }}_blocks % p.entries{{ i }};
    let end = min((part + 1u) * {{ p_way }}_slice, {{ p_way }}_k);
    let to = part * {{ p_way }}_y_part + entry * {{ p_way }}_rows;
    var largest = {{ T }}(0u);
{% if way == "across" %}
    let row = group % {{ p_way }}_blocks * {{ 16 * step }}u + lane % 16u * {{ step }}u;
    if row < {{ p_way }}_rows {
        let at = entry_at{{ i }}(entry) + {{ "row / 4u" if vec else "row" }};
{{ walk(i, way, "lane / 16u", 16) }}
    }
    {{ found }}[lane] = largest;
    workgroupBarrier();
    if lane < 16u && row < {{ p_way }}_rows {
        for (var j = 1u; j < 16u; j++) {
            largest = max(largest, {{ found }}[lane + 16u * j]);
        }
{% if vec %}
        {{ y }}[to + row] = largest.x;
        {{ y }}[to + row + 1u] = largest.y;
        {{ y }}[to + row + 2u] = largest.z;
        {{ y }}[to + row + 3u] = largest.w;
{% else %}
        {{ y }}[to + row] = largest;
{% endif %}
    }
{% else %}
    let row = group % {{ p_way }}_blocks * 8u + lane / 32u;
    if row < {{ p_way }}_rows {
        let at = entry_at{{ i }}(entry) + row * {{ p_way }}_x_row;
{{ walk(i, way, "lane % 32u", 32) }}
    }
    {{ found }}[lane] = {{ "max(max(largest.x, largest.y), max(largest.z, largest.w))" if vec else "largest" }};
    workgroupBarrier();
    for (var half = 16u; half > 0u; half = half / 2u) {
        if lane % 32u < half {
            {{ found }}[lane] = max({{ found }}[lane], {{ found }}[lane + half]);
        }
        workgroupBarrier();
    }
    if lane % 32u == 0u && row < {{ p_way }}_rows {
        {{ y }}[to + row] = {{ found }}[lane];
    }
{% endif %}
}

{% endfor %}
{% endfor %}
@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    var group = group_index(wg, n);
{% for operand in operands %}
{% set i = loop.index0 %}
{% for way in operand.ways %}
    if group < p.{{ way }}{{ i }}_groups {
        {{ way }}{{ i }}(group, lane);
        return;
    }
    group -= p.{{ way }}{{ i }}_groups;
{% endfor %}
{% endfor %}
}
