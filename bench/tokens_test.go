package bench

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tiktoken-go/tokenizer"

	"github.com/apithrottle/throttle/providers"
)

// TestTokens compares the estimates of package providers with the tokens of texts to which they are not
// fitted. With -v it prints a table.
func TestTokens(t *testing.T) {
	names := []string{"o200k", "cl100k", "claude", "claude3", "tekken", "mistral", "llama3"}
	models := []string{"gpt-4o", "gpt-4", "claude-opus-5", "claude-sonnet-4-5", "mistral-large-latest", "open-mixtral-8x7b", "llama-3.3-70b-versatile"}
	texts, counts := heldOut(t)
	ratios := map[string][]float64{}
	t.Logf("%-22s %s", "text", fmt.Sprintf(strings.Repeat(" %7s", len(names)), anys(names)...))
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		most := 1.6
		if slices.Contains([]string{"uuids", "hexadecimal", "base64", "identifiers"}, name) {
			most = 1.3
		}
		var row strings.Builder
		for i, of := range names {
			ratio := float64(providers.TokensOf(models[i])(texts[name])) / counts[name][of]
			fmt.Fprintf(&row, " %7.2f", ratio)
			if ratios[of] = append(ratios[of], ratio); ratio < 0.9 || ratio > most {
				t.Errorf("%s: %.2f of the tokens of %s, want 0.9 to %.1f", name, ratio, of, most)
			}
		}
		t.Logf("%-22s %s", name, &row)
	}
	for _, of := range names {
		slices.Sort(ratios[of])
		median := ratios[of][len(ratios[of])/2]
		if t.Logf("median of %s: %.2f", of, median); median > 1.25 {
			t.Errorf("the median of %s is %.2f, want at most 1.25", of, median)
		}
	}
}

// heldOut returns the texts in testdata/tokens and their tokens by vocabulary.
func heldOut(t *testing.T) (texts map[string]string, counts map[string]map[string]float64) {
	t.Helper()
	recorded, err := os.ReadFile("testdata/tokens/counts.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(recorded, &counts); err != nil {
		t.Fatal(err)
	}
	o200k, cl100k := codec(t, tokenizer.O200kBase), codec(t, tokenizer.Cl100kBase)
	texts = map[string]string{}
	for name, of := range counts {
		text, err := os.ReadFile("testdata/tokens/" + name + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = string(text)
		of["o200k"], of["cl100k"] = o200k(texts[name]), cl100k(texts[name])
	}
	return texts, counts
}

func anys[T any](of []T) (all []any) {
	for _, v := range of {
		all = append(all, v)
	}
	return all
}

// codec returns a function that counts the tokens of a text.
func codec(t *testing.T, e tokenizer.Encoding) func(string) float64 {
	t.Helper()
	c, err := tokenizer.Get(e)
	if err != nil {
		t.Fatal(err)
	}
	return func(text string) float64 {
		n, err := c.Count(text)
		if err != nil {
			t.Fatal(err)
		}
		return float64(n)
	}
}

// TestTokensFitted compares providers.Tokens with o200k for the texts to which an earlier version of it
// was fitted, which are longer. With -v it prints a table.
func TestTokensFitted(t *testing.T) {
	o200k := codec(t, tokenizer.O200kBase)
	t.Logf("%-22s %7s %7s %9s", "text", "bytes", "o200k", "of o200k")
	for _, kind := range kinds(t) {
		n, want := float64(providers.Tokens(kind.text)), o200k(kind.text)
		t.Logf("%-22s %7d %7.0f %9.2f", kind.name, len(kind.text), want, n/want)
		if n < 0.9*want || n > kind.most*want {
			t.Errorf("%s: %.0f tokens, want %.0f to %.0f", kind.name, n, 0.9*want, kind.most*want)
		}
	}
}

// A kind is text of one kind, and the largest ratio of its count to its o200k tokens.
type kind struct {
	name, text string
	most       float64
}

func kinds(t *testing.T) []kind {
	t.Helper()
	const main, other = 1.3, 1.6
	code, err := os.ReadFile("../transport.go")
	if err != nil {
		t.Fatal(err)
	}
	words, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	list := func(n int, line func(i int) string) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(line(i))
		}
		return b.String()
	}
	id := func(int) string {
		return fmt.Sprintf("%08x-%04x-4%03x-a%03x-%012x\n", r.Uint32(), r.Uint32()>>16, r.Uint32()>>20, r.Uint32()>>20, r.Uint64()>>16)
	}
	type record struct {
		ID      int               `json:"id"`
		Name    string            `json:"name"`
		Email   string            `json:"email"`
		Amount  float64           `json:"amount"`
		Active  bool              `json:"active"`
		Created string            `json:"created_at"`
		Tags    []string          `json:"tags"`
		Address map[string]string `json:"address"`
	}
	names := []string{"Alice Johnson", "Miguel Santos", "Chen Wei", "Priya Natarajan", "Olaf Lindqvist"}
	records := make([]record, 100)
	for i := range records {
		name := names[r.IntN(len(names))]
		records[i] = record{
			ID: 10_000 + r.IntN(90_000), Name: name, Email: strings.ToLower(strings.ReplaceAll(name, " ", ".")) + "@example.com",
			Amount: float64(r.IntN(1_000_000)) / 100, Active: r.IntN(2) == 0, Created: time.Unix(1_700_000_000+r.Int64N(1e7), 0).UTC().Format(time.RFC3339),
			Tags: []string{"customer", "newsletter"}, Address: map[string]string{"street": "12 Market Street", "city": "Springfield", "zip": fmt.Sprint(10_000 + r.IntN(80_000))},
		}
	}
	compact, err := json.Marshal(records)
	if err != nil {
		t.Fatal(err)
	}
	pretty, err := json.MarshalIndent(records, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 6_000)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	return []kind{
		{"English", english, main},
		{"Markdown", string(words), main},
		{"Go", string(code), main},
		{"Python", python, main},
		{"JSON, pretty", string(pretty), main},
		{"JSON, compact", string(compact), main},
		{"CSV", "id,date,amount,currency,status\n" + list(400, func(i int) string {
			return fmt.Sprintf("%d,2026-%02d-%02d,%d.%02d,EUR,paid\n", 100_000+i, 1+r.IntN(12), 1+r.IntN(28), r.IntN(10_000), r.IntN(100))
		}), main},
		{"log lines", list(300, func(i int) string {
			return fmt.Sprintf("2026-11-22T15:%02d:%02d.%03dZ INFO server: request finished method=GET path=/v1/orders/%d status=200 duration=%dms ip=10.0.%d.%d\n",
				i/60, i%60, r.IntN(1_000), r.IntN(100_000), r.IntN(900), r.IntN(256), r.IntN(256))
		}), main},
		{"UUIDs", list(400, id), main},
		{"Chinese", chinese, main},
		{"Chinese, traditional", traditional, main},
		{"Japanese", japanese, main},
		{"Japanese, katakana", katakana, main},
		{"Korean", korean, main},
		{"Chinese and English", strings.ReplaceAll(chinese, "。", "。 The next step is in the manual. "), main},
		{"German", german, other},
		{"French", french, other},
		{"Vietnamese", vietnamese, other},
		{"Russian", russian, other},
		{"Greek", greek, other},
		{"Arabic", arabic, other},
		{"Hebrew", hebrew, other},
		{"Hindi", hindi, other},
		{"Thai", thai, other},
		{"emoji", "😀 🎉 👍 🚀 ❤️ 🔥 😂 🙏 ✅ 🌍 👩‍💻 🇩🇪 ⭐ 🎂 🐍 📈", other},
		{"JavaScript, minified", script, main},
		{"SQL", sql, main},
		{"HTML", html, main},
		{"hexadecimal", fmt.Sprintf("%x", data), other},
		{"base64", base64.StdEncoding.EncodeToString(data), other},
	}
}

// BenchmarkTokens measures providers.Tokens.
func BenchmarkTokens(b *testing.B) {
	for _, kind := range []kind{{name: "English", text: strings.Repeat(english, 100)}, {name: "Chinese", text: strings.Repeat(chinese, 100)}, {name: "Python", text: strings.Repeat(python, 100)}} {
		b.Run(kind.name, func(b *testing.B) {
			b.SetBytes(int64(len(kind.text)))
			b.ReportAllocs()
			for b.Loop() {
				providers.Tokens(kind.text)
			}
		})
	}
}

const english = `A library lends more than books. In the small town where I grew up, the reading room stayed open until nine
on Thursdays, and people came in from the rain as much as for the newspapers. The librarian, a quiet woman who had
studied chemistry before the war, knew which children would ask for adventure stories and which would want to be left
alone with an atlas. She kept a register of every overdue volume, although nobody ever paid a fine.

Years later I asked her why she had never bothered to collect the money. "Because the ones who forget are usually the
ones who read," she said, and turned back to her catalogue. It was an answer that explained a great deal about how
institutions survive: not through the strictness of their rules, but through the judgement of those who apply them.
When the council finally closed the building, more than four hundred residents signed a petition within three days.
They didn't win. The shelves were sold, the roof was repaired, and a dentist moved in. But the petition itself,
framed behind glass, still hangs in the waiting room, where patients read the names of their grandparents.
`

const python = `import asyncio
from dataclasses import dataclass, field
from typing import Iterable, Optional


@dataclass
class RetryPolicy:
    """How often a failed call is repeated."""

    max_attempts: int = 5
    base_delay: float = 0.25
    retry_on: tuple[type[Exception], ...] = (TimeoutError, ConnectionError)
    history: list[float] = field(default_factory=list)

    async def run(self, func, *args, **kwargs):
        for attempt in range(1, self.max_attempts + 1):
            try:
                return await func(*args, **kwargs)
            except self.retry_on as exc:
                if attempt == self.max_attempts:
                    raise RuntimeError(f"gave up after {attempt} attempts") from exc
                delay = self.base_delay * 2 ** (attempt - 1)
                self.history.append(delay)
                await asyncio.sleep(delay)


def chunked(items: Iterable[int], size: int = 100) -> Iterable[list[int]]:
    batch: list[int] = []
    for item in items:
        batch.append(item)
        if len(batch) >= size:
            yield batch
            batch = []
    if batch:
        yield batch
`

const chinese = `图书馆出借的不仅仅是书。在我长大的小镇上,阅览室每逢星期四一直开放到晚上九点,人们来这里既是为了看报纸,也是为了躲雨。
图书管理员是一位安静的女士,战前学过化学,她知道哪些孩子会来借冒险故事,哪些孩子只想独自翻看地图册。她登记每一本逾期未还的书,但是从来没有人交过罚款。
多年以后我问她为什么从不收钱。她回答说,忘记还书的人往往正是真正读书的人,然后继续整理她的目录。这个回答说明了机构如何得以延续:不是依靠严格的规则,而是依靠执行规则的人的判断力。
当市政府最终关闭这座建筑时,三天之内有四百多名居民在请愿书上签名。他们没有成功。书架被卖掉了,屋顶修好了,一位牙医搬了进来。但是那份请愿书仍然装在镜框里,挂在候诊室的墙上。
人工智能系统的性能取决于训练数据的质量,请将以下文档翻译成英文,并且总结其中的主要观点。
`

const traditional = `圖書館出借的不僅僅是書。在我長大的小鎮上,閱覽室每逢星期四一直開放到晚上九點,人們來這裡既是為了看報紙,也是為了躲雨。請將以下文件翻譯成英文,並總結其中的主要觀點。
`

const katakana = `サーバーのパフォーマンスをモニタリングするためのダッシュボードをデプロイしました。ユーザーはブラウザからアクセスできます。トークンの数が制限を超えるとエラーになります。
`

const japanese = `図書館が貸し出すのは本だけではない。私が育った小さな町では、閲覧室は木曜日には夜の九時まで開いていて、人々は新聞を読むためだけでなく、雨宿りのためにも訪れた。
司書は戦前に化学を学んだ物静かな女性で、どの子供が冒険物語を求め、どの子供が地図帳とともに一人でいたいのかをよく知っていた。彼女は返却が遅れた本をすべて記録していたが、罰金を払った人は一人もいなかった。
何年も後に、なぜお金を集めなかったのかと尋ねると、「忘れる人こそ、たいてい本当に読んでいる人だからです」と答えて、目録の仕事に戻った。
その建物がついに閉鎖されたとき、三日間で四百人以上の住民が請願書に署名した。このシステムはリクエストの数を制限し、サーバーの負荷を減らします。
`

const korean = `도서관이 빌려주는 것은 책만이 아니다. 내가 자란 작은 마을에서는 열람실이 목요일마다 밤 아홉 시까지 열려 있었고, 사람들은 신문을 읽으러 오기도 했지만 비를 피하러 오기도 했다.
사서는 전쟁 전에 화학을 공부한 조용한 여성이었는데, 어떤 아이가 모험 이야기를 찾고 어떤 아이가 지도책과 함께 혼자 있고 싶어 하는지 알고 있었다. 그녀는 연체된 책을 모두 기록했지만 벌금을 낸 사람은 아무도 없었다.
몇 년 뒤에 왜 돈을 받지 않았느냐고 물었더니 그녀는 잊어버리는 사람들이 대개 정말로 책을 읽는 사람들이라고 대답했다. 이 시스템은 요청 수를 제한하여 서버의 부하를 줄입니다.
`

const german = `Eine Bibliothek verleiht mehr als Bücher. In der Kleinstadt, in der ich aufwuchs, blieb der Lesesaal donnerstags bis neun Uhr geöffnet,
und die Leute kamen ebenso wegen des Regens wie wegen der Zeitungen. Die Bibliothekarin, eine stille Frau, die vor dem Krieg Chemie studiert hatte,
wusste, welche Kinder nach Abenteuergeschichten fragen würden. Die Geschwindigkeitsbegrenzung der Schnittstelle schützt die Datenverarbeitungsanlage vor Überlastung.
`

const french = `Une bibliothèque ne prête pas que des livres. Dans la petite ville où j'ai grandi, la salle de lecture restait ouverte jusqu'à neuf heures le jeudi,
et les gens venaient autant pour s'abriter de la pluie que pour lire les journaux. La bibliothécaire, une femme discrète qui avait étudié la chimie avant la guerre,
savait quels enfants demanderaient des récits d'aventures et lesquels préféreraient qu'on les laisse seuls avec un atlas.
`

const vietnamese = `Thư viện không chỉ cho mượn sách. Ở thị trấn nhỏ nơi tôi lớn lên, phòng đọc mở cửa đến chín giờ tối thứ Năm, và mọi người đến đó để tránh mưa cũng như để đọc báo.
Người thủ thư là một phụ nữ trầm lặng đã học hóa học trước chiến tranh, bà biết những đứa trẻ nào sẽ hỏi truyện phiêu lưu.
`

const russian = `Библиотека выдаёт не только книги. В маленьком городе, где я вырос, читальный зал по четвергам был открыт до девяти часов вечера, и люди приходили туда не только за газетами, но и чтобы укрыться от дождя.
Библиотекарь, тихая женщина, изучавшая до войны химию, знала, какие дети попросят приключенческие рассказы, а какие захотят остаться наедине с атласом.
`

const greek = `Μια βιβλιοθήκη δεν δανείζει μόνο βιβλία. Στη μικρή πόλη όπου μεγάλωσα, το αναγνωστήριο έμενε ανοιχτό μέχρι τις εννέα κάθε Πέμπτη, και ο κόσμος ερχόταν τόσο για τη βροχή όσο και για τις εφημερίδες.
`

const arabic = `لا تعير المكتبة الكتب فقط. في البلدة الصغيرة التي نشأت فيها، كانت قاعة القراءة تبقى مفتوحة حتى التاسعة مساء كل يوم خميس، وكان الناس يأتون هربا من المطر كما يأتون لقراءة الصحف.
كانت أمينة المكتبة امرأة هادئة درست الكيمياء قبل الحرب، وكانت تعرف أي الأطفال سيطلب قصص المغامرات.
`

const hebrew = `ספרייה משאילה יותר מאשר ספרים. בעיירה הקטנה שבה גדלתי, אולם הקריאה נשאר פתוח עד תשע בערב בימי חמישי, ואנשים באו אליו מפני הגשם לא פחות מאשר בשביל העיתונים.
`

const hindi = `पुस्तकालय केवल किताबें ही नहीं देता। जिस छोटे शहर में मैं बड़ा हुआ, वहाँ वाचनालय गुरुवार को रात नौ बजे तक खुला रहता था, और लोग अखबार पढ़ने के साथ-साथ बारिश से बचने के लिए भी आते थे।
पुस्तकालयाध्यक्ष एक शांत महिला थीं जिन्होंने युद्ध से पहले रसायन विज्ञान पढ़ा था।
`

const thai = `ห้องสมุดไม่ได้ให้ยืมแค่หนังสือเท่านั้น ในเมืองเล็กๆ ที่ฉันเติบโตมา ห้องอ่านหนังสือเปิดถึงสามทุ่มทุกวันพฤหัสบดี และผู้คนมาที่นี่เพื่อหลบฝนพอๆ กับมาอ่านหนังสือพิมพ์ บรรณารักษ์เป็นผู้หญิงเงียบๆ ที่เคยเรียนเคมีก่อนสงคราม
`

const script = `!function(e,t){"object"==typeof exports&&"undefined"!=typeof module?module.exports=t():"function"==typeof define&&define.amd?define(t):(e=e||self).Vue=t()}(this,function(){"use strict";var e=Object.freeze({});function t(e){return null==e}function n(e){return null!=e}function r(e){return!0===e}function i(e){return"string"==typeof e||"number"==typeof e||"symbol"==typeof e||"boolean"==typeof e}function o(e){return null!==e&&"object"==typeof e}var a=Object.prototype.toString;function s(e){return"[object Object]"===a.call(e)}function c(e){var t=parseFloat(String(e));return t>=0&&Math.floor(t)===t&&isFinite(e)}function u(e){return n(e)&&"function"==typeof e.then&&"function"==typeof e.catch}});`

const sql = `SELECT o.id, o.created_at, c.full_name, SUM(i.quantity * i.unit_price) AS total
FROM orders AS o
JOIN customers AS c ON c.id = o.customer_id
LEFT JOIN order_items AS i ON i.order_id = o.id
WHERE o.status IN ('paid', 'shipped') AND o.created_at >= '2026-01-01'
GROUP BY o.id, o.created_at, c.full_name
HAVING SUM(i.quantity * i.unit_price) > 1000
ORDER BY total DESC LIMIT 50;
`

const html = `<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>Orders</title><link rel="stylesheet" href="/static/app.css"></head>
<body>
  <nav class="navbar navbar-expand-lg"><a class="navbar-brand" href="/">Home</a></nav>
  <main id="content" class="container">
    <table class="table table-striped"><tr><th scope="col">Number</th><th scope="col">Total</th></tr>
      <tr data-id="1042"><td>1042</td><td class="text-right">19.90 EUR</td></tr>
    </table>
  </main>
</body>
</html>
`
