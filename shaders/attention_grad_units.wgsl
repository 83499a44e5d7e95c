{% from "shared/units.wgsl" import enable, array, put, read, zero, load, multiply_add, fold, store, times, meet, put_halves, product %}
{% if keys %}
// dv = (w · z)ᵀ dout and dk = scale · gᵀ q, with w = e^(q kᵀ · scale + mask - log-sum-exp) the weights, z what dropout
{% else %}
// dq = scale · g k, with w = e^(q kᵀ · scale + mask - log-sum-exp) the weights, z what dropout
{% endif %}
// multiplies them with, g = w · (z · (dout vᵀ) - delta) the gradient of the scores and delta the sums of dout · out:
// without scores in memory (Dao, arXiv 2307.08691, section 2.3.2), on units that multiply f16 matrices.
//
// A workgroup of {{ subs }} subgroups has {{ subs * rows }} {{ "keys" if keys else "queries" }} of one head and walks over blocks of {{ block }} {{ "queries" if keys else "keys" }}, which it stages as f16
// rows scaled by powers of two{{ ", each element as a high and a low part" if split }}. A subgroup has {{ rows }} of the {{ "keys" if keys else "queries" }} in registers and goes through a
// block {{ step }} at a time: products by the units into workgroup memory, where lanes turn them into weights and gradients
// of scores, of four keys at a time, which the units multiply with the staged rows.
//
// Of what is summed, a row's factor goes into its weights; their largest so far in the subgroup gives the power of two
// by which all of them are scaled and sums are kept. A row of a result is summed over {{ "queries" if keys else "keys" }} in order.
{{ enable(u) }}
enable f16;
{% include "shared/attend_grad.wgsl" %}

{% include "shared/halves.wgsl" %}

{% set parts = width // u.side %}
{% set tiles = rows // u.side %}
{% set runs = step // u.side %}
{# a subgroup's pairs: queries by keys #}
{% set pair_rows = step if keys else rows %}
{% set pair_columns = rows if keys else step %}
{% set fours = pair_columns // 4 %}
{% set count = pair_rows * fours // u.lanes %}
{% set tile_rows = rows if rows > pair_rows else pair_rows %}
{# distances between rows, in vec4s: of staged rows, products, weights #}
{% set at_row = width // 4 + 2 %}
{% set at_product = fours + 1 %}
{% set at_weight = fours + 2 %}
{% set results = [["dv", 1], ["dk", 0]] if keys else [["dq", 0]] %}
const LOG2_E: f32 = 1.44269504;

{% for half in u.halves %}
{% for name in theirs %}
{{ array(name ~ "_" ~ half, "f16", block * at_row, u) }}
{% endfor %}
{% for name, _ in results %}
{{ array("for_" ~ name ~ "_" ~ half, "f16", subs * tile_rows * at_weight, u) }}
{% endfor %}
{% endfor %}
{{ array("scores", "f32", subs * tile_rows * at_product, u) }}
{{ array("gradients", "f32", subs * pair_rows * at_product, u) }}
{% set queries = block if keys else subs * rows %}
{% set key_count = subs * rows if keys else block %}
// of each query: what undoes the scale of q, times that of scores, and of dout, log-sum-exp and delta
var<workgroup> queries: array<vec4<f32>, {{ queries }}>;
// what undoes the scale of each key and value
var<workgroup> key_factors: array<vec4<f32>, {{ key_count // 4 }}>;
var<workgroup> value_factors: array<vec4<f32>, {{ key_count // 4 }}>;

{% macro most(x) %}{% if u.emulated %}{{ x }}{% else %}subgroupMax({{ x }}){% endif %}{% endmacro %}
{# what becomes of a row once its largest magnitudes are known #}
{% macro note(side_keys, at, first, second, query) %}
{% if side_keys %}
                    key_factors[({{ at }}) / 4u][({{ at }}) % 4u] = row_factor({{ first }});
                    value_factors[({{ at }}) / 4u][({{ at }}) % 4u] = row_factor({{ second }});
{% else %}
                    let pair = bitcast<vec2<f32>>(stats[p.stats_offset + b * p.stats_batch + 2u + h * p.sq + min({{ query }}, p.sq - 1u)]);
                    queries[{{ at }}] = vec4<f32>(row_factor({{ first }}) * p.scale, row_factor({{ second }}), pair);
{% endif %}
{% endmacro %}
{# an invocation's share of a row of the other side, and what it makes of it #}
{% macro fetch() %}
{% for name in theirs %}
{% for c in range(held) %}
            {
                let c = lane % {{ share }}u + {{ c * share }}u;
                {{ name }}_{{ c }} = vec4<f32>(0.0);
                if r < {{ block }}u && from_row + r < end{{ " && c < " ~ columns ~ "u" if columns * 4 != width }} {
                    {{ name }}_{{ c }} = read_{{ name }}(at_{{ name }} + (from_row + r) * p.{{ name }}_row, c * 4u);
                }
            }
{% endfor %}
{% endfor %}
{% endmacro %}
{% macro stage() %}
{% for name in theirs %}
{% set which = loop.index0 %}
            var largest_{{ which }} = 0u;
{% for c in range(held) %}
            largest_{{ which }} = max(largest_{{ which }}, magnitude({{ name }}_{{ c }}));
{% endfor %}
{% for by in shuffles %}
            largest_{{ which }} = max(largest_{{ which }}, subgroupShuffleXor(largest_{{ which }}, {{ by }}u));
{% endfor %}
{% endfor %}
            if r < {{ block }}u {
{% for name in theirs %}
{% set which = loop.index0 %}
                let scale_{{ which }} = row_scale(largest_{{ which }});
{% for c in range(held) %}
{{ put_halves(name, "r * " ~ at_row ~ "u + lane % " ~ share ~ "u + " ~ c * share ~ "u", "scaled(" ~ name ~ "_" ~ c ~ ", scale_" ~ which ~ ")", u) }}
{% endfor %}
{% endfor %}
                if lane % {{ share }}u == 0u {
{{ note(not keys, "r", "largest_0", "largest_1", "at_block + r") }}
                }
            }
{% endmacro %}
{# for each four pairs of a lane, number e #}
{% macro each_four(e) %}{% if u.emulated %}for (var e = 0u; e < {{ count }}u; e++) {{ "{" }}{% else %}{{ "{" }}
                let e = {{ e }}u;{% endif %}{% endmacro %}
{% set turns = 1 if u.emulated else count %}

@compute @workgroup_size({{ threads }})
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let group = group_index(wg, n);
    for (var go = group < p.groups; go; go = false) {
    let heads = p.groups / p.blocks;
    let bh = group % heads;
{% if keys %}
    let first = group / heads * {{ subs * rows }}u;
{% else %}
    let first = (p.blocks - 1u - group / heads) * {{ subs * rows }}u;
{% endif %}
    let b = bh / p.heads;
    let h = bh % p.heads;
    let l = lane % {{ u.lanes }}u;
    let sub = lane / {{ u.lanes }}u;
    let own = first + sub * {{ rows }}u;
    let at_scores = sub * {{ tile_rows * at_product }}u;
    let at_gradients = sub * {{ pair_rows * at_product }}u;
    let at_weights = sub * {{ tile_rows * at_weight }}u;
    let valid = valid_keys(b);
{% for name in ["q", "k", "v", "dout"] %}
    let at_{{ name }} = p.{{ name }}_offset + b * p.{{ name }}_batch + h * p.{{ name }}_head;
{% endfor %}
{% if dropout %}
    let stream = stream_of(b, h);
{% endif %}
{% if keys %}
    let start = first_query(first, valid);
    let end = p.sq;
    let own_start = first_query(own, valid);
    let own_end = select(0u, end, own < {{ own_rows }});
{% else %}
    let start = 0u;
    let end = u32(max(end_of_keys(min(first + {{ subs * rows - 1 }}u, p.sq - 1u), valid), 0));
    let own_start = 0u;
    let own_end = select(0u, u32(max(end_of_keys(min(own + {{ rows - 1 }}u, p.sq - 1u), valid), 0)), own < {{ own_rows }});
{% endif %}
    // the workgroup's own rows
    var scale_0 = array<f32, {{ (rows + u.lanes - 1) // u.lanes }}>();
    var scale_1 = array<f32, {{ (rows + u.lanes - 1) // u.lanes }}>();
    for (var row = l; row < {{ rows }}u; row += {{ u.lanes }}u) {
        var largest_0 = 0u;
        var largest_1 = 0u;
        if own + row < {{ own_rows }} {
            for (var c = 0u; c < {{ columns }}u; c += 1u) {
{% for name in ours %}
                largest_{{ loop.index0 }} = max(largest_{{ loop.index0 }}, magnitude(read_{{ name }}(at_{{ name }} + (own + row) * p.{{ name }}_row, c * 4u)));
{% endfor %}
            }
        }
        scale_0[row / {{ u.lanes }}u] = row_scale(largest_0);
        scale_1[row / {{ u.lanes }}u] = row_scale(largest_1);
{{ note(keys, "sub * " ~ rows ~ "u + row", "largest_0", "largest_1", "own + row") }}
    }
{% for c in range(parts) %}
{% for name in ours %}
{% set which = loop.index0 %}
    for (var row = l; row < {{ rows }}u; row += {{ u.lanes }}u) {
{% for four in range(u.side // 4) %}
        {
            var value = vec4<f32>(0.0);
{% if c * u.side // 4 + four < columns %}
            if own + row < {{ own_rows }} {
                value = scaled(read_{{ name }}(at_{{ name }} + (own + row) * p.{{ name }}_row, {{ c * u.side + four * 4 }}u), scale_{{ which }}[row / {{ u.lanes }}u]);
            }
{% endif %}
{{ put_halves("for_" ~ results[0][0], "at_weights + row * " ~ at_weight ~ "u + " ~ four ~ "u", "value", u) }}
        }
{% endfor %}
    }
    {{ meet(u) }}
{% for t in range(tiles) %}
{% for half in u.halves %}
    {{ load(name ~ t ~ "_" ~ c ~ "_" ~ half, "B" if keys else "A", "for_" ~ results[0][0] ~ "_" ~ half, "at_weights + " ~ t * u.side * at_weight ~ "u", at_weight ~ "u", not keys, u) }}
{% endfor %}
{% endfor %}
    {{ meet(u) }}
{% endfor %}
{% for t in range(tiles) %}
{% for name, _ in results %}
    var {{ name }}{{ t }}_{{ c }} = {{ zero(u) }};
{% endfor %}
{% endfor %}
{% endfor %}
    // exponents of the largest number that was multiplied for each result
{% for name, _ in results %}
    var level_{{ name }} = 15u;
{% endfor %}
{% for name in theirs %}
{% for c in range(held) %}
    var {{ name }}_{{ c }} = vec4<f32>(0.0);
{% endfor %}
{% endfor %}
{% if ahead %}
    {
        let r = lane / {{ share }}u;
        let from_row = start;
{{ fetch() }}
    }
{% endif %}
    for (var at_block = start; at_block < end; at_block += {{ block }}u) {
{% if ahead %}
        {
            let r = lane / {{ share }}u;
{{ stage() }}
        }
        workgroupBarrier();
        {
            let r = lane / {{ share }}u;
            let from_row = at_block + {{ block }}u;
{{ fetch() }}
        }
{% else %}
        for (var r0 = 0u; r0 < {{ block }}u; r0 += {{ threads // share }}u) {
            let r = r0 + lane / {{ share }}u;
            let from_row = at_block;
{{ fetch() }}
{{ stage() }}
        }
        workgroupBarrier();
{% endif %}
        // not the same for all subgroups: each leaves out where no key of it is seen
        for (var t = select(0u, (own_start - at_block) / {{ step }}u * {{ step }}u, own_start > at_block); t < {{ block }}u && at_block + t < own_end; t += {{ step }}u) {
{% for q in range(pair_rows // u.side) %}
{% for k in range(pair_columns // u.side) %}
            var s{{ q }}_{{ k }} = {{ zero(u) }};
            var g{{ q }}_{{ k }} = {{ zero(u) }};
{% endfor %}
{% endfor %}
{% for c in range(parts) %}
{% for run in range(runs) %}
{% for name in theirs %}
            {
{% for half in u.halves %}
                {{ load("x_" ~ half, "A" if keys else "B", name ~ "_" ~ half, "(t + " ~ run * u.side ~ "u) * " ~ at_row ~ "u + " ~ c * u.side // 4 ~ "u", at_row ~ "u", keys, u) }}
{% endfor %}
{% set sum = "sg"[loop.index0] %}
{% set our = ours[loop.index0] %}
{% for t in range(tiles) %}
{% if keys %}
{{ product(sum ~ run ~ "_" ~ t, "x", our ~ t ~ "_" ~ c, u) }}
{% else %}
{{ product(sum ~ t ~ "_" ~ run, our ~ t ~ "_" ~ c, "x", u) }}
{% endif %}
{% endfor %}
            }
{% endfor %}
{% endfor %}
{% endfor %}
{% for q in range(pair_rows // u.side) %}
{% for k in range(pair_columns // u.side) %}
            {{ store("s" ~ q ~ "_" ~ k, "scores", "at_scores + " ~ (q * u.side * at_product + k * u.side // 4) ~ "u", at_product ~ "u", u) }}
            {{ store("g" ~ q ~ "_" ~ k, "gradients", "at_gradients + " ~ (q * u.side * at_product + k * u.side // 4) ~ "u", at_product ~ "u", u) }}
{% endfor %}
{% endfor %}
            {{ meet(u) }}
{% if keys %}
            let queries_from = at_block + t;
            let keys_from = own;
            let at_queries = t;
            let at_keys = sub * {{ rows // 4 }}u;
{% else %}
            let queries_from = own;
            let keys_from = at_block + t;
            let at_queries = sub * {{ rows }}u;
            let at_keys = t / 4u;
{% endif %}
            // whether some query does not see some key of these
            let hides = {{ "true" if mask else "queries_from + " ~ pair_rows ~ "u > p.sq || i32(keys_from + " ~ pair_columns ~ "u) > end_of_keys(queries_from, valid)" }};
{% for name, _ in results %}
            var for_{{ name }}: array<vec4<f32>, {{ count }}>;
            var largest_{{ name }} = 0u;
{% endfor %}
{% for turn in range(turns) %}
            {{ each_four(turn) }}
                let row = (e * {{ u.lanes }}u + l) / {{ fours }}u;
                let column = (e * {{ u.lanes }}u + l) % {{ fours }}u;
                let query = queries[at_queries + row];
                let key_factor = key_factors[at_keys + column];
                var score = {{ read("scores", "f32", "at_scores + row * " ~ at_product ~ "u + column", u) }} * (key_factor * query.x);
                var dw = {{ read("gradients", "f32", "at_gradients + row * " ~ at_product ~ "u + column", u) }} * (value_factors[at_keys + column] * query.y);
                var hidden = vec4<bool>(false);
                if hides {
                    let i = min(queries_from + row, p.sq - 1u);
                    let j = keys_from + column * 4u;
                    let seen = select(0, end_of_keys(i, valid), queries_from + row < p.sq);
                    let at_m = {% if mask %}p.m_offset + b * p.m_batch + i * p.m_row + h * p.m_head{% else %}0u{% endif %};
                    score = vec4<f32>({% for c in range(4) %}masked(score.{{ "xyzw"[c] }}, at_m, j + {{ c }}u, seen){{ ", " if c < 3 }}{% endfor %});
                    hidden = score <= vec4<f32>(HIDDEN);
                }
                let w = select(exp2((score - query.z) * LOG2_E), vec4<f32>(0.0), hidden);
{% if dropout %}
                let z = kept(weights_of(b, min(queries_from + row, p.sq - 1u)) + keys_from + column * 4u, stream);
                dw *= z;
{% endif %}
                // whatever the others hold, a weight of 0 has no gradient
                let nothing = w == vec4<f32>(0.0);
                let of_score = w * (dw - query.w);
{% if keys %}
                for_dv[e] = select(w{{ " * z" if dropout }} * query.y, vec4<f32>(0.0), nothing);
                for_dk[e] = select(of_score * query.x, vec4<f32>(0.0), nothing);
{% else %}
                for_dq[e] = select(of_score * key_factor, vec4<f32>(0.0), nothing);
{% endif %}
{% for name, _ in results %}
                largest_{{ name }} = max(largest_{{ name }}, finite(for_{{ name }}[e]));
{% endfor %}
            }
{% endfor %}
{% for name, _ in results %}
            let new_{{ name }} = max(level_{{ name }}, {{ most("largest_" ~ name) }} >> 23u);
            // a loop, since naga takes a condition for one that differs between lanes
            for (var rise = new_{{ name }} > level_{{ name }}; rise; rise = false) {
                let down = bitcast<f32>(select((level_{{ name }} + 127u - new_{{ name }}) << 23u, 0u, new_{{ name }} - level_{{ name }} > 126u));
{% for t in range(tiles) %}
{% for c in range(parts) %}
                {{ times(name ~ t ~ "_" ~ c, "down", u) }}
{% endfor %}
{% endfor %}
                level_{{ name }} = new_{{ name }};
            }
            let scale_{{ name }} = bitcast<f32>((268u - level_{{ name }}) << 23u);
{% endfor %}
{% for turn in range(turns) %}
            {{ each_four(turn) }}
                let row = (e * {{ u.lanes }}u + l) / {{ fours }}u;
                let column = (e * {{ u.lanes }}u + l) % {{ fours }}u;
{% for name, _ in results %}
{{ put_halves("for_" ~ name, "at_weights + row * " ~ at_weight ~ "u + column", "for_" ~ name ~ "[e] * scale_" ~ name, u) }}
{% endfor %}
            }
{% endfor %}
            {{ meet(u) }}
{% for name, their in results %}
{% for t in range(tiles) %}
{% for run in range(runs) %}
{% for half in u.halves %}
{% set at = (run * u.side * at_weight + t * u.side // 4) if keys else (t * u.side * at_weight + run * u.side // 4) %}
            {{ load(name ~ "w" ~ t ~ "_" ~ run ~ "_" ~ half, "A", "for_" ~ name ~ "_" ~ half, "at_weights + " ~ at ~ "u", at_weight ~ "u", not keys, u) }}
{% endfor %}
{% endfor %}
{% endfor %}
{% for c in range(parts) %}
            {
{% if split %}
{% for t in range(tiles) %}
                var part{{ t }} = {{ zero(u) }};
{% endfor %}
{% endif %}
{% for run in range(runs) %}
                {
{% for half in u.halves %}
                    {{ load("x_" ~ half, "B", theirs[their] ~ "_" ~ half, "(t + " ~ run * u.side ~ "u) * " ~ at_row ~ "u + " ~ c * u.side // 4 ~ "u", at_row ~ "u", true, u) }}
{% endfor %}
{% for t in range(tiles) %}
{{ product("part" ~ t if split else name ~ t ~ "_" ~ c, name ~ "w" ~ t ~ "_" ~ run, "x", u) }}
{% endfor %}
                }
{% endfor %}
{% if split %}
                // sums of the units are cut off, not rounded: they are kept short
{% for t in range(tiles) %}
                {{ fold(name ~ t ~ "_" ~ c, "part" ~ t, u) }}
{% endfor %}
{% endif %}
            }
{% endfor %}
{% endfor %}
            {{ meet(u) }}
        }
        workgroupBarrier();
    }
{% for name, _ in results %}
    let undo_{{ name }} = bitcast<f32>((level_{{ name }} - 14u) << 23u){{ " * p.scale" if not keys }};
{% for c in range(parts) %}
{% for t in range(tiles) %}
    {{ store(name ~ t ~ "_" ~ c, "scores", "at_scores + " ~ t * u.side * at_product ~ "u", at_product ~ "u", u) }}
{% endfor %}
    {{ meet(u) }}
    for (var id = l; id < {{ rows * u.side // 4 }}u; id += {{ u.lanes }}u) {
        let row = id / {{ u.side // 4 }}u;
        let column = id % {{ u.side // 4 }}u;
        if own + row < {{ own_rows }}{{ " && column < " ~ (columns - c * u.side // 4) ~ "u" if columns < (c + 1) * u.side // 4 }} {
{% set to = "dv" if name == "dv" else "o" %}
            let at_o = p.{{ to }}_offset + b * p.{{ to }}_batch + (own + row) * p.{{ to }}_row + h * p.{{ to }}_head;
            write_{{ name }}(at_o, {{ c * u.side }}u + column * 4u, {{ read("scores", "f32", "at_scores + row * " ~ at_product ~ "u + column", u) }} * undo_{{ name }});
        }
    }
    {{ meet(u) }}
{% endfor %}
{% endfor %}
    }
}

// The bits of the largest magnitude of those that are finite.
fn finite(x: vec4<f32>) -> u32 {
    let bits = bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
    let known = select(bits, vec4<u32>(0u), bits >= vec4<u32>(0x7f800000u));
    return max(max(known.x, known.y), max(known.z, known.w));
}
