//go:build unix

package cli

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/throttletest"
)

// TestPrometheusScrapes checks that a Prometheus reads all metrics of a proxy at the address of its
// pages. It needs a prometheus.
func TestPrometheusScrapes(t *testing.T) {
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("no prometheus")
	}
	api := throttletest.NewProvider(throttle.PerSecond(200))
	defer api.Close()
	p := startProxy(t, fmt.Sprintf("routes: {/a: {to: %q, policy: \"5/s + 10000/h\", name: acme}}\nobservability: {listen: \"127.0.0.1:0\"}\n", api.URL))
	pages := p.log.wait(1, `msg="the pages listen" address=(\S+)`)[1]
	for range 3 {
		fetch(t, p.url+"/a/x")
	}
	server := startPrometheus(t, program, pages)
	query := func(what string) (values []string) {
		resp, err := http.Get(server + "/api/v1/query?query=" + url.QueryEscape(what))
		if err != nil {
			return nil // it does not listen yet
		}
		defer resp.Body.Close()
		var answer struct {
			Data struct {
				Result []struct {
					Metric map[string]string
					Value  [2]any
				}
			}
		}
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
			return nil
		}
		for _, r := range answer.Data.Result {
			values = append(values, fmt.Sprint(r.Value[1]))
		}
		return values
	}
	for what, want := range map[string]string{
		`up{job="throttle"}`: "1",
		`throttle_requests_total{policy="acme",class="normal",result="admitted"}`:   "3",
		`throttle_tier_usage{policy="acme",tier="10000/h"}`:                         "3",
		`throttle_upstream_responses_total{route="/a",status="2xx"}`:                "3",
		`throttle_upstream_response_seconds_count{route="/a"}`:                      "3",
		`histogram_quantile(1, throttle_upstream_response_seconds_bucket) > bool 0`: "1",
	} {
		var got string
		for end := time.Now().Add(2 * time.Minute); got != want && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			got = strings.Join(query(what), ",")
		}
		t.Logf("%s %s", what, got)
		if got != want {
			t.Errorf("%s is %q, want %s", what, got, want)
		}
	}
}

// startPrometheus starts a Prometheus that scrapes an address each second, and returns its URL.
func startPrometheus(t *testing.T, program, target string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") // a free port
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs:\n  - {job_name: throttle, metrics_path: /_throttle/metrics, static_configs: [{targets: [%q]}]}\n", target)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return "http://" + address
}
