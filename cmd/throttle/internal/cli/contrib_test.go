package cli

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle/cmd/throttle/config"
	"github.com/goccy/go-yaml"
)

// root is the root of the repository.
const rootDir = "../../../.."

func readRoot(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(rootDir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// parsed fails unless the command accepts arguments, and returns the flags that they set.
func parsed(t *testing.T, args []string) map[string]string {
	t.Helper()
	c := &command{System: System{Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" }}}
	cmd, rest, err := c.root().Find(args)
	if err == nil && !cmd.HasParent() {
		err = errors.New("no verb")
	}
	if err == nil {
		err = cmd.ParseFlags(rest)
	}
	if err == nil {
		err = cmd.ValidateArgs(cmd.Flags().Args())
	}
	if err != nil {
		t.Fatalf("throttle %s: %v", strings.Join(args, " "), err)
	}
	set := make(map[string]string)
	for _, name := range []string{"config", "page"} {
		if f := cmd.Flags().Lookup(name); f != nil {
			set[name] = f.Value.String()
		}
	}
	return set
}

// loaded returns a configuration whose secrets are those variables and files alone.
func loaded(t *testing.T, name, text string, env, files []string) *config.Config {
	t.Helper()
	c, err := config.Loader{
		LookupEnv: func(name string) (string, bool) { return "0123456789abcdef", slices.Contains(env, name) },
		ReadFile: func(path string) ([]byte, error) {
			if slices.Contains(files, path) {
				return []byte("0123456789abcdef"), nil
			}
			return nil, fs.ErrNotExist
		},
	}.Parse([]byte(text), name)
	if err != nil {
		t.Fatal(err)
	}
	for prefix := range c.Routes {
		if _, err := c.Transport(prefix, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	return c
}

// A unit is a file of systemd: the values of each setting of a section.
type unit map[string][]string

func readUnit(text string) unit {
	u, section := unit{}, ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = strings.Trim(line, "[]")
		}
		if key, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			u[section+"."+key] = append(u[section+"."+key], value)
		}
	}
	return u
}

// The unit of systemd runs the proxy with the file beside it, which refers to the secrets that the
// unit has, and gives it the time to end.
func TestSystemd(t *testing.T) {
	text := readRoot(t, "contrib/systemd/throttle-proxy.service")
	u := readUnit(text)
	start := strings.Fields(u["Service.ExecStart"][0])
	if got := parsed(t, start[1:])["config"]; got != "/etc/throttle/throttle.yaml" {
		t.Errorf("the proxy reads %s", got)
	}
	var secrets []string
	for _, credential := range u["Service.LoadCredential"] {
		name, _, _ := strings.Cut(credential, ":")
		secrets = append(secrets, "/run/credentials/throttle-proxy.service/"+name)
	}
	c := loaded(t, "throttle.yaml", readRoot(t, "contrib/systemd/throttle.yaml"), nil, secrets)
	if state := "/var/lib/" + u["Service.StateDirectory"][0]; filepath.ToSlash(filepath.Dir(c.Store.File)) != state {
		t.Errorf("the store is %s, outside of %s", c.Store.File, state)
	}
	if s, err := strconv.Atoi(u["Service.TimeoutStopSec"][0]); err != nil || time.Duration(s)*time.Second <= c.Timeouts.Shutdown {
		t.Errorf("TimeoutStopSec is %d, %v; want more than %v", s, err, c.Timeouts.Shutdown)
	}
	for _, code := range []int{exitUsage, exitConfig} {
		if !slices.Contains(strings.Fields(u["Service.RestartPreventExitStatus"][0]), strconv.Itoa(code)) {
			t.Errorf("systemd restarts the proxy after exit code %d", code)
		}
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "throttle-proxy.service")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(text, start[0], self)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(analyze, "verify", "--man=no", file).CombinedOutput()
	if bytes.Contains(out, []byte("throttle-proxy")) {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// The fields of Kubernetes that the manifest uses, so that others are errors.
type (
	object struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   struct{ Name string }
		Data       map[string]string
		StringData map[string]string `yaml:"stringData"`
		Spec       struct {
			Replicas int
			Selector struct {
				MatchLabels map[string]string `yaml:"matchLabels"`
			}
			Template struct {
				Metadata struct{ Labels, Annotations map[string]string }
				Spec     pod
			}
		}
	}
	pod struct {
		TerminationGracePeriodSeconds int         `yaml:"terminationGracePeriodSeconds"`
		InitContainers                []container `yaml:"initContainers"`
		Containers                    []container
		Volumes                       []struct {
			Name      string
			ConfigMap struct{ Name string } `yaml:"configMap"`
		}
	}
	container struct {
		Name, Image   string
		RestartPolicy string `yaml:"restartPolicy"`
		Args          []string
		EnvFrom       []struct {
			SecretRef struct{ Name string } `yaml:"secretRef"`
		} `yaml:"envFrom"`
		Env   []struct{ Name, Value string }
		Ports []struct {
			Name          string
			ContainerPort int `yaml:"containerPort"`
		}
		StartupProbe    probe `yaml:"startupProbe"`
		LivenessProbe   probe `yaml:"livenessProbe"`
		Resources       struct{ Requests, Limits map[string]string }
		SecurityContext struct {
			RunAsNonRoot             bool  `yaml:"runAsNonRoot"`
			RunAsUser                int   `yaml:"runAsUser"`
			RunAsGroup               int   `yaml:"runAsGroup"`
			ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
			AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
			Capabilities             struct{ Drop []string }
			SeccompProfile           struct{ Type string } `yaml:"seccompProfile"`
		} `yaml:"securityContext"`
		VolumeMounts []struct {
			Name      string
			MountPath string `yaml:"mountPath"`
			ReadOnly  bool   `yaml:"readOnly"`
		} `yaml:"volumeMounts"`
		Lifecycle struct {
			PreStop struct{ Sleep struct{ Seconds int } } `yaml:"preStop"`
		}
	}
	probe struct {
		HTTPGet          struct{ Path, Port string } `yaml:"httpGet"`
		PeriodSeconds    int                         `yaml:"periodSeconds"`
		TimeoutSeconds   int                         `yaml:"timeoutSeconds"`
		FailureThreshold int                         `yaml:"failureThreshold"`
	}
)

// The sidecar's arguments and file are those of the proxy, and its parts fit together.
func TestSidecar(t *testing.T) {
	objects := make(map[string]object)
	for d := yaml.NewDecoder(strings.NewReader(readRoot(t, "contrib/kubernetes/sidecar.yaml")), yaml.Strict()); ; {
		var o object
		if err := d.Decode(&o); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		objects[o.Kind] = o
	}
	spec := objects["Deployment"].Spec.Template.Spec
	proxy, app := spec.InitContainers[0], spec.Containers[0]
	secret := objects["Secret"]
	if proxy.RestartPolicy != "Always" || proxy.EnvFrom[0].SecretRef.Name != secret.Metadata.Name ||
		proxy.VolumeMounts[0].Name != spec.Volumes[0].Name || spec.Volumes[0].ConfigMap.Name != objects["ConfigMap"].Metadata.Name {
		t.Errorf("the parts do not fit: %+v", proxy)
	}
	var env []string
	for name := range secret.StringData {
		env = append(env, name)
	}
	dir, name := filepath.Split(parsed(t, proxy.Args)["config"])
	if filepath.Clean(dir) != filepath.Clean(proxy.VolumeMounts[0].MountPath) {
		t.Errorf("the file is in %s, and the volume at %s", dir, proxy.VolumeMounts[0].MountPath)
	}
	text := strings.ReplaceAll(objects["ConfigMap"].Data[name], "${env:REDIS_URL}", secret.StringData["REDIS_URL"])
	c := loaded(t, "sidecar.yaml", text, env, nil)
	if time.Duration(spec.TerminationGracePeriodSeconds)*time.Second <= c.Timeouts.Shutdown+time.Duration(app.Lifecycle.PreStop.Sleep.Seconds)*time.Second {
		t.Errorf("the pod ends after %d seconds, too soon for the proxy", spec.TerminationGracePeriodSeconds)
	}
	if base := app.Env[0].Value; c.Routes[strings.TrimPrefix(base, "http://"+c.Listen)] == nil {
		t.Errorf("no route is at %s", base)
	}
	// A probe must not end a proxy whose API has closed the quota. The kubelet and Prometheus are not on
	// the loopback interface of the pod.
	host, port, err := net.SplitHostPort(c.Observability.Listen)
	if err != nil || net.ParseIP(host).IsLoopback() || strconv.Itoa(proxy.Ports[0].ContainerPort) != port {
		t.Errorf("the pages are at %s, and the port is %+v: %v", c.Observability.Listen, proxy.Ports, err)
	}
	for _, p := range []probe{proxy.StartupProbe, proxy.LivenessProbe} {
		if p.HTTPGet.Path != config.ReservedPrefix+"/live" || p.HTTPGet.Port != proxy.Ports[0].Name {
			t.Errorf("a probe asks %+v", p.HTTPGet)
		}
	}
	if a := objects["Deployment"].Spec.Template.Metadata.Annotations; a["prometheus.io/port"] != port || a["prometheus.io/path"] != config.ReservedPrefix+"/metrics" || !*c.Observability.Metrics {
		t.Errorf("Prometheus scrapes %v", a)
	}
	if s := proxy.SecurityContext; !s.RunAsNonRoot || s.RunAsUser == 0 || !s.ReadOnlyRootFilesystem || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation {
		t.Errorf("the proxy may do too much: %+v", s)
	}
}

// The image has no root and no shell, and runs the proxy.
func TestContainerfile(t *testing.T) {
	_, last, ok := strings.Cut(readRoot(t, "contrib/Containerfile"), "\nFROM scratch\n")
	if !ok || strings.Contains(last, "\nRUN ") {
		t.Error("the image has more than it needs")
	}
	var user, cmd string
	for line := range strings.Lines(last) {
		switch word, rest, _ := strings.Cut(strings.TrimSpace(line), " "); word {
		case "USER":
			user = rest
		case "CMD":
			cmd = rest
		}
	}
	var args []string
	if err := yaml.Unmarshal([]byte(cmd), &args); err != nil {
		t.Fatal(err)
	}
	if parsed(t, args)["config"] != "/etc/throttle/throttle.yaml" || user == "" || strings.HasPrefix(user, "0") {
		t.Errorf("user %q runs %q", user, args)
	}
}
