package integration_test

import (
	"bytes"
	"context"
	"errors"
	"go/ast"
	"go/format"
	"go/parser"
	"go/printer"
	"go/token"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/retry"
)

// The functions below compile the calls in docs/migrating.md of this library. Those of other libraries
// are in bench/migrated_test.go.

func migratedClient(req *http.Request) error {
	lim, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(5)}}, nil)
	if err != nil {
		return err
	}
	client := throttle.NewClient(lim)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func migratedLimiter(ctx context.Context, lim *throttle.Limiter, policy throttle.Policy, base http.RoundTripper, n int64) (err error) {
	_ = lim.Wait(ctx)
	_ = lim.WaitN(ctx, n)
	_ = lim.Allow()
	_ = lim.AllowN(n)
	_, _ = lim.Forecast(ctx, nil)
	p, err := lim.Acquire(ctx, nil)
	_ = p.Cancel(ctx)
	_ = lim.SetPolicy(ctx, policy)
	_, _ = lim.Status(ctx)
	_ = errors.Is(err, throttle.ErrDeadline)
	_ = errors.Is(err, throttle.ErrExceedsCapacity)
	_ = &throttle.Transport{Limiter: lim, Base: base}
	return err
}

func migratedGroup(ctx context.Context, policy throttle.Policy, rdb *redis.Client, key string, n int64) error {
	group, err := throttle.NewGroup(policy, distributed.New(rdb, distributed.Options{}), throttle.GroupOptions{})
	_ = group.For(key).Allow()
	_ = group.For(key).AllowN(n)
	_ = group.For(key).Wait(ctx)
	_, _ = group.For(key).Status(ctx)
	_, _ = group.For(key).TryAcquire(ctx, nil)
	return err
}

func migratedPool(ctx context.Context, pool *throttle.Pool) error {
	permit, err := pool.Acquire(ctx, nil)
	_ = permit.Member()
	_ = retry.NewClient
	return err
}

// migratedNames are the names of this library that the page has without a call.
var migratedNames = map[string]any{
	"Estimated": throttle.Tier{}.Estimated, "Limiter": throttle.Transport{}.Limiter, "Member": throttle.Member{},
	"Policy.MaxWait": throttle.Policy{}.MaxWait, "Rank": throttle.Member{}.Rank, "Remaining": throttle.TierStatus{}.Remaining,
	"Spill": throttle.Pool{}.Spill, "Transport": throttle.Transport{}, "Weight": throttle.Member{}.Weight,
	"Allow": (*throttle.Limiter).Allow, "AllowN": (*throttle.Limiter).AllowN,
}

// TestMigratingCompiles checks that each Go block of docs/migrating.md, and each call in its tables and
// sentences, is in this file or, if it is one of another library, in bench/migrated_test.go, and that each
// policy is one.
func TestMigratingCompiles(t *testing.T) {
	text, err := os.ReadFile("../../docs/migrating.md")
	if err != nil {
		t.Fatal(err)
	}
	after, before := newGoCode(t, "migrating_test.go"), newGoCode(t, "../../bench/migrated_test.go")
	page := string(text)

	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```").FindAllStringSubmatch(page, -1)
	if len(blocks) != 2 {
		t.Errorf("the page has %d Go blocks, want 2", len(blocks))
	}
	for _, block := range blocks {
		if !after.hasBlock(t, block[1]) && !before.hasBlock(t, block[1]) {
			t.Errorf("this block is in neither file:\n%s", block[1])
		}
		page = strings.Replace(page, block[0], "", 1)
	}

	code := regexp.MustCompile("`[^`]+`")
	calls, others := 0, 0
	for line := range strings.Lines(page) {
		cells := strings.Split(line, " | ")
		for i, cell := range cells {
			isTable := len(cells) == 2
			for _, span := range code.FindAllString(cell, -1) {
				span = strings.Trim(span, "`")
				_, notPolicy := throttle.ParsePolicy("", span)
				source, ok := goSource(span)
				_, isName := migratedNames[span]
				switch {
				case notPolicy == nil || isName:
				case isTable && i == 0:
					if !ok || !strings.ContainsAny(span, ".([") {
						continue // a setting or the text of an error, which TestMigrating of bench compares
					}
					others++
					if !before.has(source) {
						t.Errorf("bench/migrated_test.go lacks %s", span)
					}
				case isTable || strings.Contains(span, "("):
					calls++
					if !ok || !after.has(source) {
						t.Errorf("this file lacks %s", span)
					}
				case strings.ContainsAny(span, "/;=") && !strings.Contains(span, " "):
					t.Errorf("%s is no policy: %v", span, notPolicy)
				}
			}
		}
	}
	if calls < 25 || others < 25 {
		t.Errorf("the page has %d calls of this library and %d of others: some were not recognized", calls, others)
	}
}

// goCode is the code of a file of Go.
type goCode struct {
	text  string
	nodes map[string]bool // the statements and expressions, formatted
}

func newGoCode(t *testing.T, name string) goCode {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	c := goCode{string(text), make(map[string]bool)}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n.(type) {
		case ast.Expr, *ast.AssignStmt, *ast.ExprStmt:
			c.nodes[formatted(n, set)] = true
		}
		return true
	})
	return c
}

// hasBlock reports whether a function has the lines of a block, formatted.
func (c goCode) hasBlock(t *testing.T, block string) bool {
	t.Helper()
	source, err := format.Source([]byte("\t" + strings.ReplaceAll(strings.TrimSpace(block), "\n", "\n\t")))
	if err != nil {
		t.Errorf("%v:\n%s", err, block)
	}
	return strings.Contains(c.text, "\n"+string(source)+"\n")
}

func (c goCode) has(source string) bool { return c.nodes[source] }

// goSource formats a statement or an expression. It fails if the text is neither.
func goSource(text string) (source string, ok bool) {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, "", "package p\nfunc f() {\n"+text+"\n}", parser.SkipObjectResolution)
	if err != nil {
		return "", false
	}
	body := f.Decls[0].(*ast.FuncDecl).Body.List
	if len(body) != 1 {
		return "", false
	}
	return formatted(body[0], set), true
}

func formatted(n ast.Node, set *token.FileSet) string {
	var b bytes.Buffer
	_ = printer.Fprint(&b, set, n)
	return b.String()
}

// The functions are only compiled.
var _ = []any{migratedClient, migratedLimiter, migratedGroup, migratedPool}
