package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func TestCommand(t *testing.T) {
	var stdout, stderr bytes.Buffer
	args := []string{"-quick", "-json", "-svg", t.TempDir(), "-run", "^/(throttle|uber)/rolling/uniform/5/s \\+"}
	if code := command(t, args, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	var rows []Row
	if err := json.Unmarshal(stdout.Bytes(), &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) != 2 || rows[0].Client != "throttle" || rows[1].Client != "uber" || rows[0].Policy != twoTiers {
		t.Errorf("the rows are %+v", rows)
	}
	if !strings.Contains(stderr.String(), "fidelity-uniform.svg") {
		t.Errorf("no chart was written: %s", &stderr)
	}
	for _, args := range [][]string{{"-run", "("}, {"-unknown"}} {
		if code := command(t, args, &stdout, &stderr); code != 2 {
			t.Errorf("%q: exit code %d, want 2", args, code)
		}
	}
}

func TestTables(t *testing.T) {
	row := func(client, delay string, refused int64, used float64) Row {
		return Row{Client: client, Provider: "fixed", Delay: delay, Policy: "5/s", Refused: refused, Sent: 300, Utilization: used, Seconds: 60}
	}
	var b strings.Builder
	writeTables(&b, []Row{row("a", "none", 0, 1), row("a", "heavy", 3, 0.99999), row("b", "heavy", 12, 0.5)})
	want := `refused of sent / used of the upper bound

5/s, fixed, 60 s of virtual time each

| client | no delay           | to 500 ms late     |
| ------ | -----------------: | -----------------: |
| a      | 0 of 300 / 100.0 % |  3 of 300 / 99.9 % |
| b      |                    | 12 of 300 / 50.0 % |
`
	if got := b.String(); got != want {
		t.Errorf("printed\n%s\nwant\n%s", got, want)
	}
}
