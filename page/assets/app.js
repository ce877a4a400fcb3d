'use strict';

// The page of package page. Names of policies and tiers come from elsewhere: they become text, never HTML.

const SECONDS = 300; // of the history
const ROW = 10; // seconds in a row of a table
const COLUMN = 3; // seconds in a column of a chart
const $ = id => document.getElementById(id);
const cards = new Map(); // by the name of the policy
let last = null; // the state without histories

/* Words */

const number = new Intl.NumberFormat('en').format;
// amount returns an amount of a unit. A nanodollar is a billionth of a dollar.
const dollars = digits => new Intl.NumberFormat('en', {style: 'currency', currency: 'USD', maximumFractionDigits: digits}).format;
const [cents, millionths] = [dollars(2), dollars(6)];
const amount = (n, unit) => unit !== 'nanodollars' ? number(n) : (Math.abs(n) < 1e9 ? millionths : cents)(n / 1e9);
const rate = n => n === 0 ? '0' : n < 0.1 ? '<0.1' : n < 10 ? n.toFixed(1) : number(Math.round(n));
const plural = (n, word) => number(n) + ' ' + word + (n === 1 ? '' : 's');
const upper = s => s.slice(0, 1).toUpperCase() + s.slice(1);
const short = s => s.length > 120 ? s.slice(0, 100) + '…' : s;
const title = s => s.trim() === '' ? '(no name)' : short(s);

// duration returns a time in seconds, rounded up.
function duration(s) {
  if (s < 0.001) return s > 0 ? '<1 ms' : '0 s';
  if (s < 0.1) return Math.ceil(s * 1000) + ' ms';
  if (s < 9.95) return (Math.ceil(s * 10) / 10).toFixed(1) + ' s';
  s = Math.ceil(s);
  const units = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  const i = units.findIndex(u => s >= u[0]);
  const big = Math.floor(s / units[i][0]);
  const small = i < 3 ? Math.floor(s % units[i][0] / units[i + 1][0]) : 0;
  return big + ' ' + units[i][1] + (small ? ' ' + small + ' ' + units[i + 1][1] : '');
}

// clock returns a time of day, with the date if it is another day.
function clock(ms, seconds = true) {
  const d = new Date(ms), now = new Date(last.time);
  const time = d.toLocaleTimeString('en-GB', seconds ? {} : {hour: '2-digit', minute: '2-digit'});
  if (d.toDateString() === now.toDateString()) return time;
  const far = d.getFullYear() !== now.getFullYear();
  return d.toLocaleDateString('en-GB', {day: 'numeric', month: 'short', year: far ? 'numeric' : undefined}) + ', ' + time;
}

const endless = s => s > 3e8; // ten years
const until = (s, seconds) => endless(s) ? 'without end' : 'until ' + clock(Date.parse(last.time) + s * 1000, seconds);

/* DOM */

function el(tag, cls, text) {
  const e = document.createElement(tag);
  if (cls) e.className = cls;
  if (text !== undefined) e.textContent = text;
  return e;
}

function add(parent, ...children) {
  parent.append(...children);
  return parent;
}

function put(node, text) {
  const t = node.firstChild;
  if (!t) node.textContent = text;
  else if (t.data !== text) t.data = text;
}

function shape(name, attributes) {
  const e = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const k in attributes) e.setAttribute(k, attributes[k]);
  return e;
}

// fit makes a list have n children.
function fit(list, n, make) {
  while (list.children.length > n) list.lastChild.remove();
  while (list.children.length < n) list.append(make());
}

let ids = 0;
const newID = () => 'n' + ++ids;

// meterRow is a name, a text and a meter.
function meterRow(cls) {
  const name = el('b'), more = el('span', 'small'), of = el('span'), meter = el('meter'), note = el('p', 'small');
  name.id = newID();
  of.id = newID();
  meter.setAttribute('aria-labelledby', name.id + ' ' + of.id);
  const li = add(el('li', cls), add(el('div', 'row'), add(el('span'), name, more), of), meter, note);
  li.parts = {name, more, of, meter, note};
  return li;
}

function fill(meter, value, max) {
  value = Math.min(value, max);
  meter.max = max;
  meter.value = value;
  const part = value / max * 100;
  meter.style.setProperty('--part', (value > 0 ? Math.max(part, 1) : 0).toFixed(2) + '%');
}

// tierName writes "10,000/h" and, smaller, the options and the policy behind it.
function tierName(parts, tier, policy, own) {
  const cut = tier.search(/[; ]/);
  const head = cut < 0 ? tier : tier.slice(0, cut);
  let rest = cut < 0 ? '' : tier.slice(cut).replace(/^;/, '').replaceAll(';', ', ')
    .replace(/^ *unit=[^,]*(, )?/, '').replace(/algo=|zone=|=true/g, '').replaceAll('_', ' ');
  if (policy !== own) rest += (rest ? ', ' : '') + 'of ' + title(policy);
  put(parts.name, short(head.replace(/\d+/, n => number(Number(n))).replace(/\/m$/, '/min')));
  put(parts.more, rest ? ' ' + short(rest) : '');
}

/* A policy */

function newCard(name) {
  const c = {name, past: {}, end: 0};
  for (const s of series) c.past[s] = new Array(SECONDS).fill(0);
  c.node = el('article', 'card');
  c.node.id = newID();
  const h2 = el('h2');
  h2.id = newID();
  add(h2, el('bdi', '', title(name)));
  if (name.length > 120) h2.title = name.slice(0, 1000);
  c.node.setAttribute('aria-labelledby', h2.id);
  c.badge = el('p', 'badge');
  c.tiers = el('ul');
  c.facts = el('dl', 'facts');
  c.fact = {};
  c.note = el('p', 'small note');
  add(c.node, add(el('header', 'head'), h2, c.badge), c.note, c.tiers, c.facts);
  c.chart = newChart(c);
  c.decidedTitle = el('h3', '', 'What requests waited for');
  c.decided = el('ul');
  c.foot = el('p', 'small foot');
  add(c.node, c.decidedTitle, c.decided, c.foot);
  return c;
}

// memberRow is a member of a pool: its name, its share of the admissions and its tiers.
function memberRow() {
  const li = meterRow('member');
  li.parts.tiers = add(li, el('ul')).lastChild;
  return li;
}

function showMember(parts, m, p) {
  put(parts.name, title(m.name));
  put(parts.more, m.weight ? ' rank ' + m.rank + ', weight ' + number(m.weight) : '');
  put(parts.of, p.counted ? Math.round(m.share * 100) + ' % of admissions' : '');
  parts.meter.hidden = !p.counted;
  fill(parts.meter, m.share, 1);
  const [text, cls] = m.condition === 'unwatched' ? ['Tiers are not watched', 'soft'] : badges[m.condition](m);
  put(parts.note, text);
  parts.note.className = 'badge ' + cls;
  fit(parts.tiers, m.tiers.length, () => meterRow('tier'));
  m.tiers.forEach((t, i) => showTier(parts.tiers.children[i].parts, t, m, m.policy));
}

// causes are what requests waited for if no tier decided.
const causes = {pause: 'pauses', store: 'replies of the store', callers: 'other callers'};

function showCard(c, p) {
  c.policy = p;
  put(c.note, p.note || '');
  c.note.hidden = !p.note;
  if (c.isPool !== !!p.members) c.tiers.replaceChildren();
  c.isPool = !!p.members;
  fit(c.tiers, p.members ? p.members.length : p.tiers.length, () => p.members ? memberRow() : meterRow('tier'));
  if (p.members) p.members.forEach((m, i) => showMember(c.tiers.children[i].parts, m, p));
  else p.tiers.forEach((t, i) => showTier(c.tiers.children[i].parts, t, p, p.name));
  showFacts(c, p);
  const waits = p.decided.filter(d => d.share >= 0.005);
  c.decidedTitle.hidden = waits.length === 0;
  fit(c.decided, waits.length, () => meterRow('share'));
  waits.forEach((d, i) => {
    const parts = c.decided.children[i].parts;
    if (d.tier) tierName(parts, d.tier, d.policy, p.name);
    else put(parts.name, d.causes.map(cause => causes[cause]).join(', '));
    put(parts.of, Math.round(d.share * 100) + ' % of the time');
    fill(parts.meter, d.share, 1);
    put(parts.note, plural(d.waits, 'wait') + ', ' + duration(d.seconds) + ' in all');
  });
}

// conditions are the worst one first, as package page has them. Those from Full on change by the second,
// and move no card.
const conditions = ['unknown', 'banned', 'spent', 'paused', 'refusing', 'limited', 'full', 'open', 'unwatched'];
const rank = c => Math.min(conditions.indexOf(c.policy.condition), conditions.indexOf('full'));

// badges return the text of a badge and its class.
const badges = {
  unknown: p => ['✕ ' + unknown(p), 'hot'],
  banned: p => ['⊘ Banned ' + until(p.closed_seconds) + left(p.closed_seconds), 'hot'],
  spent: p => ['▲ Spent' + spentUntil(p), 'hot'],
  paused: p => ['❙❙ Paused ' + until(p.paused_seconds) + left(p.paused_seconds), 'warm'],
  refusing: (p, c) => rateOf(c, 'refused') >= 1 ? ['▼ Refuses ' + rate(rateOf(c, 'refused')) + '/s', 'hot'] : ['▼ ' + lastMinute(c, 'refused') + ' refused in the last minute', 'warm'],
  limited: (p, c) => ['◆ The API refused ' + lastMinute(c, 'limited') + ' in the last minute', 'warm'],
  full: p => ['● Full ' + fullUntil(p), 'warm'],
  open: () => ['● Open', ''],
  unwatched: p => [p.counted ? 'Tiers are not watched' : '○ No request yet', 'soft'],
};

const unknown = p => p.failure === 'unavailable' ? 'The store does not answer' :
  p.failure === 'no_members' ? 'The pool has no members' : 'State not known: ' + p.failure;

// decisive are what has the condition of a policy: the members of a pool that have it, or the policy itself.
const decisive = p => p.members ? p.members.filter(m => m.condition === p.condition) : [p];

// spentUntil returns when the last of the budgets that are used up begins anew.
function spentUntil(p) {
  const ends = t => t.period_end ? Date.parse(t.period_end) : Infinity;
  const end = Math.min(...decisive(p).map(q => Math.max(...q.tiers.filter(t => t.budget && t.remaining <= 0).map(ends))));
  return end < Infinity ? ' until ' + clock(end, false) : '';
}

function fullUntil(p) {
  const waits = decisive(p).map(q => q.tiers.map(t => t.retry_after_seconds)).filter(all => all.every(s => s >= 0));
  return waits.length ? until(Math.min(...waits.map(all => Math.max(...all)))) : 'until a request ends';
}

// rateOf returns how many a second there were in the last ten seconds, and lastMinute how many in the last minute.
const rateOf = (c, s) => sum(c.past[s].slice(-11, -1)) / 10;
const lastMinute = (c, s) => number(sum(c.past[s].slice(-60)));

function showBadge(c) {
  const [text, cls] = badges[c.policy.condition](c.policy, c);
  put(c.badge, text);
  c.badge.className = 'badge ' + cls;
}

const left = s => endless(s) ? '' : ', ' + duration(s) + ' left';

function showTier(parts, t, p, own) {
  tierName(parts, t.tier, t.policy, own);
  const unit = t.unit === 'requests' || t.unit === 'nanodollars' ? '' : ' ' + short(t.unit);
  const percent = Math.floor(t.used / t.limit * 100);
  put(parts.of, amount(t.used, t.unit) + ' of ' + amount(t.limit, t.unit) + unit + ' used' + (t.budget ? ', ' + percent + ' %' : ''));
  fill(parts.meter, t.used, t.limit);
  parts.meter.className = t.retry_after_seconds >= 1 || t.budget && percent >= 90 ? 'full' : '';
  const [note, warm] = t.budget ? budgetNote(t) : [tierNote(t) + after(p) + (t.origin ? '. ' + t.origin : ''), false];
  put(parts.note, note);
  parts.note.className = warm ? 'small warm' : 'small';
}

function tierNote(t) {
  if (t.retry_after_seconds < 0) return 'one more when one of them ends';
  if (t.retry_after_seconds > 0) return 'one more in ' + duration(t.retry_after_seconds);
  return 'room for ' + amount(t.remaining, t.unit);
}

// after says that nothing is admitted before the end of a pause or ban.
const after = p => p.closed_seconds > 0 ? ', after the ban' : p.paused_seconds > 0 ? ', after the pause' : '';

function budgetNote(t) {
  const end = t.period_end ? clock(Date.parse(t.period_end), false) : '';
  if (t.remaining <= 0) return ['▲ spent; ' + (end ? 'the next period begins ' + end : tierNote(t)), true];
  const expected = t.forecast ? '. ' + upper(t.forecast.text) : '', more = t.forecast && t.forecast.total > t.limit;
  const room = (more ? '▲ ' : '') + amount(t.remaining, t.unit) + ' left' + (end ? ' until ' + end : '') + expected;
  if (!t.projection) return [room, more];
  const over = t.projection.over_seconds;
  const all = Math.abs(Date.parse(last.time) - Date.parse(t.period_start) - over * 1000) < 1000;
  const since = 'At the rate of the ' + (all ? 'period so far' : 'last ' + duration(over));
  if (!t.projection.spent_at) return [room + '. ' + since + ' it lasts the period', more];
  return [(more ? '' : '▲ ') + room + '. ' + since + ' it is spent ' + clock(Date.parse(t.projection.spent_at), false), true];
}

// showFact shows a number under its name, or removes it if the value is empty.
function showFact(c, name, value, detail) {
  let f = c.fact[name];
  if (!value) {
    if (f) f.node.remove();
    delete c.fact[name];
    return;
  }
  if (!f) {
    f = c.fact[name] = {node: el('div'), value: el('dd'), detail: el('dd')};
    add(c.facts, add(f.node, el('dt', '', name), f.value, f.detail));
  }
  put(f.value, value);
  put(f.detail, detail);
  f.detail.hidden = !detail;
}

function showFacts(c, p) {
  const classes = ['interactive', 'normal', 'batch'].filter(k => p.counted && p.queued[k] > 0);
  const queued = p.counted ? classes.reduce((n, k) => n + p.queued[k], 0) : p.waiting;
  showFact(c, 'Queue', number(queued), classes.map(k => number(p.queued[k]) + ' ' + k).join(', '));
  showFact(c, 'In flight', p.counted ? number(p.active) : '', '');
  showFact(c, 'Longest wait', p.counted ? duration(p.longest_wait_seconds) : '', 'ended in the last minute');
  const foot = p.watched && !p.failure && !p.members ? ['Guard interval ' + duration(p.guard_seconds) + ', for network delay'] : [];
  if (p.store) {
    foot.push('store ' + duration(p.store.mean_seconds) + ' on average, ' + duration(p.store.max_seconds) + ' at most');
    foot.push(number(p.store.failed) + ' of ' + plural(p.store.count, 'call') + ' failed in the last minute');
  }
  put(c.foot, foot.join('; ').replace(/^s/, 'S'));
  c.facts.hidden = Object.keys(c.fact).length === 0;
}

/* The last five minutes */

const series = ['admitted', 'refused', 'limited'];
const seriesNames = ['admitted', 'refused', '429'];

// widths learns how wide charts are, in units of which the height has 104: charts grow with the text. To
// ask for it while the page changes would be slow.
const widths = new ResizeObserver(entries => {
  for (const e of entries) {
    const c = e.target.card;
    c.chart.width = Math.round(e.contentRect.width / e.contentRect.height * 104);
    showChart(c);
  }
});

function newChart(c) {
  const t = {svg: shape('svg', {role: 'img'}), figure: el('figure')};
  const key = el('figcaption', 'key');
  t.keys = series.map((s, i) => add(key, el('span', 'k' + i)).lastChild);
  t.grid = add(t.svg, shape('path', {class: 'grid'})).lastChild;
  t.up = add(t.svg, shape('path', {class: 'up'})).lastChild;
  t.down = add(t.svg, shape('path', {class: 'down'})).lastChild;
  t.axis = add(t.svg, shape('path', {class: 'axis'})).lastChild;
  t.mark = add(t.svg, shape('path', {class: 'mark'})).lastChild;
  t.top = add(t.svg, shape('text', {x: 0, y: 8})).lastChild;
  t.from = add(t.svg, shape('text', {x: 0, y: 102})).lastChild;
  t.to = add(t.svg, shape('text', {y: 102, 'text-anchor': 'end'})).lastChild;
  t.low = add(t.svg, shape('text', {y: 102, 'text-anchor': 'middle'})).lastChild;
  t.from.textContent = '5 min ago';
  t.to.textContent = 'now';
  t.details = el('details');
  t.body = el('tbody');
  const head = el('tr');
  for (const h of ['Time', 'Admitted', 'Refused', '429']) add(head, el('th', '', h)).lastChild.scope = 'col';
  const table = add(el('table'), el('caption', '', 'Requests in each ' + ROW + ' seconds'), add(el('thead'), head), t.body);
  add(t.details, el('summary', '', 'As a table'), table);
  t.details.addEventListener('toggle', () => showTable(c));
  add(t.figure, t.svg, key);
  t.svg.card = c;
  widths.observe(t.svg);
  t.title = el('h3', '', 'Requests per second, last five minutes');
  add(c.node, t.title, t.figure, t.details);
  return t;
}

// learn moves the history on to the second end, and adds that of an event, which may be a part.
function learn(c, history, end) {
  const by = Math.min(SECONDS, Math.max(0, end - c.end));
  for (const s of series) {
    const past = c.past[s];
    past.splice(0, by);
    past.push(...new Array(by).fill(0));
    if (history) history[s].forEach((n, i) => {
      const at = history.start + i - (end - SECONDS + 1);
      if (at >= 0 && at < SECONDS) past[at] = n;
    });
  }
  c.end = end;
}

// nice returns the top of an axis: 1, 2 or 5 times a power of ten.
function nice(n) {
  let top = 1;
  for (let i = 0; top < n; i++) top *= i % 3 === 1 ? 2.5 : 2;
  return top;
}

// columns returns the seconds of the chart's columns, from and to. Columns begin at multiples of COLUMN
// seconds, so that they keep their shape while they move. The last second has not ended and is left out.
function columns(end) {
  const all = [];
  for (let i = 0; i < SECONDS - 1; i++) {
    if (i === 0 || (end - SECONDS + 1 + i) % COLUMN === 0) all.push({from: i, to: i});
    all.at(-1).to++;
  }
  return all;
}

const sum = counts => counts.reduce((n, m) => n + m, 0);
const means = (counts, cols) => cols.map(k => sum(counts.slice(k.from, k.to)) / (k.to - k.from));

// steps returns the area between y and columns of some heights as a path.
function steps(heights, cols, x, y) {
  if (heights.every(h => h === 0)) return '';
  let d = 'M0 ' + y, level = 0;
  heights.forEach((h, i) => {
    if (h !== level) d += 'H' + x(cols[i].from) + 'V' + (y - h).toFixed(1);
    level = h;
  });
  return d + 'H' + x(SECONDS - 1) + 'V' + y + 'Z';
}

function showChart(c) {
  const t = c.chart, none = !c.policy.counted;
  t.title.hidden = t.figure.hidden = t.details.hidden = none;
  if (none) return;
  const {admitted, refused, limited} = c.past;
  const sums = series.map(s => sum(c.past[s]));
  const now = series.map(s => rateOf(c, s));
  t.keys.forEach((k, i) => put(k, seriesNames[i] + ' ' + rate(now[i]) + '/s'));
  t.svg.setAttribute('aria-label', 'Last five minutes: ' + number(sums[0]) + ' admitted, ' + number(sums[1]) + ' refused here, ' +
    number(sums[2]) + ' refused by the provider');
  const width = t.width;
  if (!width) return; // not known yet
  const cols = columns(c.end), up = means(admitted, cols), down = means(refused, cols);
  const most = Math.max(...up), least = Math.max(...down);
  const height = 88, ruler = nice(Math.max(most, 0.5)), low = Math.min(least, ruler * 2);
  const y = Math.round(12 + (height - 12) * ruler / (ruler + low));
  const scale = (y - 12) / ruler, deep = low > 0 ? (height - y) / least : 0;
  const x = second => (second * width / (SECONDS - 1)).toFixed(1);
  t.svg.setAttribute('viewBox', '0 0 ' + width + ' 104');
  t.grid.setAttribute('d', 'M0 12H' + width);
  put(t.top, number(ruler) + '/s');
  t.up.setAttribute('d', steps(up.map(n => n * scale), cols, x, y));
  t.down.setAttribute('d', steps(down.map(n => -n * deep), cols, x, y));
  t.axis.setAttribute('d', 'M0 ' + y + 'H' + width);
  let d = '';
  means(limited, cols).forEach((n, i) => {
    if (n > 0) d += 'M' + x((cols[i].from + cols[i].to) / 2) + ' ' + (y - 5) + 'l5 5l-5 5l-5 -5z';
  });
  t.mark.setAttribute('d', d);
  t.to.setAttribute('x', width);
  t.low.setAttribute('x', width / 2);
  put(t.low, least > 0 ? '▼ down to ' + rate(least) + '/s' : '');
}

// showTable fills the table if it is open: a row for each ten seconds, the latest first.
function showTable(c) {
  const t = c.chart;
  if (!t.details.open) return;
  const end = c.end - c.end % ROW; // the end of the latest row that is complete
  if (t.body.end === end) return;
  t.body.end = end;
  const rows = [];
  for (let at = end - ROW; at > c.end - SECONDS; at -= ROW) {
    const row = el('tr'), time = add(row, el('th', '', clock(at * 1000))).lastChild;
    time.scope = 'row';
    const from = at - (c.end - SECONDS + 1);
    for (const s of series) add(row, el('td', '', number(sum(c.past[s].slice(from, from + ROW)))));
    rows.push(row);
  }
  t.body.replaceChildren(...rows);
}

/* What stops requests */

const alerts = new Map(); // by policy, and one for the store: what it says, when that ends, and the node

// stops returns what stops the requests of policies, by the key of the alert.
function stops() {
  const all = new Map(), time = Date.parse(last.time), away = [];
  for (const c of cards.values()) {
    const p = c.policy, [s, word, hot] = {
      banned: [p.closed_seconds, '⊘ Banned: ', true], paused: [p.paused_seconds, '❙❙ Paused: ', false], spent: [0, '▲ Spent: ', true],
    }[p.condition] || [];
    if (p.condition === 'unknown') away.push(c);
    else if (word === '▲ Spent: ') all.set(c.name, {c, word, hot, end: 0, text: spentUntil(p)});
    else if (word) all.set(c.name, {c, word, hot, end: endless(s) ? Infinity : time + s * 1000, text: ' ' + until(s)});
  }
  const more = away.length - 1;
  if (away.length) all.set(null, {c: away[0], word: '✕ ' + unknown(away[0].policy) + ': ', hot: true, end: more, text: more ? ' and ' + number(more) + ' more' : ''});
  return all;
}

// showAlerts changes only what has changed, because screen readers read each change.
function showAlerts() {
  const all = stops();
  for (const [key, a] of all) {
    const old = alerts.get(key);
    if (old && old.word === a.word && old.c === a.c && (old.end === a.end || key !== null && Math.abs(old.end - a.end) < 1500)) continue;
    const node = old ? old.node : $('alerts').appendChild(el('li')), link = el('a', '', title(a.c.name));
    link.href = '#' + a.c.node.id;
    node.replaceChildren(a.word, add(el('bdi'), link), a.text);
    node.className = a.hot ? 'hot' : '';
    alerts.set(key, Object.assign(a, {node}));
  }
  for (const [key, a] of alerts) if (!all.has(key)) {
    a.node.remove();
    alerts.delete(key);
  }
  document.title = (all.size ? '(' + all.size + ') ' : '') + last.title;
}

/* States */

// show shows a state. One that is not full has only the policies that have changed.
function show(state, full) {
  last = state;
  const changed = new Map(state.policies.map(p => [p.name, p]));
  if (full) {
    for (const [name, c] of cards) if (!changed.has(name)) {
      widths.unobserve(c.chart.svg);
      c.node.remove();
      cards.delete(name);
    }
    for (const p of state.policies) if (!cards.has(p.name)) cards.set(p.name, newCard(p.name));
  }
  for (const [name, c] of cards) {
    const p = changed.get(name);
    if (p) showCard(c, p);
    learn(c, p && p.history, state.second);
    showBadge(c);
    showChart(c);
    showTable(c);
  }
  if (full) names = state.policies.map(p => p.name);
  placeCards();
  showAlerts();
  put($('note'), state.note || '');
  $('note').hidden = !state.note;
  $('empty').hidden = cards.size > 0;
}

let names = []; // of the policies, in the order of the state

// placeCards puts the worst cards first. While the focus is in a card, cards stay: to move them would end it.
function placeCards() {
  const focus = document.activeElement;
  if (focus && focus.closest('.card') && $('policies').children.length === cards.size) return;
  let before = null;
  for (const c of names.map(name => cards.get(name)).sort((a, b) => rank(a) - rank(b))) {
    const place = before ? before.nextSibling : $('policies').firstChild;
    if (c.node !== place) $('policies').insertBefore(c.node, place);
    before = c.node;
  }
}

/* The connection: events, and polling where there are none */

let events = null, eventAt = 0, late = 0, hiddenAt = 0;

function connect() {
  if (events) events.close();
  events = new EventSource('./events');
  for (const kind of ['state', 'tick']) events.addEventListener(kind, e => {
    if (kind === 'tick' && !last) return;
    show(JSON.parse(e.data), kind === 'state');
    say('Live');
    eventAt = performance.now();
    late = 0;
  });
  events.onerror = e => {
    say('Connecting again…');
    if (e.target.readyState === EventSource.CLOSED) poll(); // refused
  };
}

function say(text) {
  $('live').hidden = false;
  $('live').className = text === 'Live' ? '' : 'late';
  put($('live'), text === 'Live' ? 'Live, ' + clock(Date.parse(last.time)) : text);
}

async function poll() {
  try {
    const response = await fetch('./state.json', {cache: 'no-store'});
    if (!response.ok) throw new Error(response.status);
    show(await response.json(), true);
    put($('live'), 'Polling, ' + clock(Date.parse(last.time)));
  } catch {
    say(last ? 'No connection since ' + clock(Date.parse(last.time)) : 'No connection');
  }
}

// watch asks for the state if no event has come for some seconds, and for events again after a quarter of a minute.
function watch() {
  if (document.hidden) {
    hiddenAt = hiddenAt || performance.now();
    if (events && performance.now() - hiddenAt > 15e3) { // nobody looks
      events.close();
      events = null;
    }
    return;
  }
  hiddenAt = 0;
  if (!events) return connect();
  if (performance.now() - eventAt < 4000 && events.readyState !== EventSource.CLOSED) return;
  if (late++ % 2 === 0) poll();
  if (late % 15 === 0) connect();
}

connect();
setInterval(watch, 1000);
document.addEventListener('visibilitychange', watch);
