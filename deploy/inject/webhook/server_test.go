package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kube "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	discoveryfake "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/yaml"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testConfig() Config {
	cfg := Default()
	cfg.Listen, cfg.AdminListen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.CertSecret, cfg.Service, cfg.Webhook = testNamespace+"/"+testSecret, testNamespace+"/injector", testWebhook
	cfg.Image, cfg.Version = "agent:1", "v1"
	return cfg
}

func newServer(t *testing.T, cfg Config, release string) *Server {
	t.Helper()
	client := fake.NewClientset(configuration())
	d := client.Discovery().(*discoveryfake.FakeDiscovery)
	if release != "" {
		_, minor, _ := strings.Cut(strings.TrimPrefix(release, "v"), ".")
		minor, _, _ = strings.Cut(minor, ".")
		d.FakedServerVersion = &version.Info{Major: "1", Minor: minor, GitVersion: release}
	}
	s, err := New(cfg, client)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// answer posts a review to the handler and returns the response.
func answer(t *testing.T, s *Server, path string, req *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	t.Helper()
	body, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: req})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body)))
	var out admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil || w.Code != http.StatusOK {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	if out.Kind != "AdmissionReview" || out.APIVersion != "admission.k8s.io/v1" || out.Response == nil || out.Response.UID != "u1" {
		t.Fatalf("not the answer to the request: %s", w.Body)
	}
	return out.Response
}

func podRequest(t *testing.T, shape string) *admissionv1.AdmissionRequest {
	t.Helper()
	text, err := os.ReadFile("../testdata/" + shape + "/pod.yaml")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	return &admissionv1.AdmissionRequest{
		UID: "u1", Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}, Operation: admissionv1.Create, Namespace: "models",
		Object: kube.RawExtension{Raw: raw},
	}
}

func TestReviews(t *testing.T) {
	for _, tt := range []struct {
		name    string
		path    string
		release string
		more    func(*Config, *admissionv1.AdmissionRequest)
		patched bool
		warning string
	}{
		{"agent", "/inject/agent", "v1.36.3", nil, true, "add to its arguments"},
		{"configure", "/inject/configure", "v1.29.0", nil, true, ""},
		{"label without value", "/inject/default", "v1.36.3", nil, true, "add to its arguments"},
		{"disabled namespace", "/inject/disabled", "v1.36.3", nil, false, ""},
		{"namespace not labelled", "/inject", "v1.36.3", nil, false, ""},
		{"wrong label", "/inject/yes", "v1.36.3", nil, false, `is "yes"`},
		{"switched off", "/inject/agent", "v1.36.3", func(c *Config, _ *admissionv1.AdmissionRequest) { c.Disabled = true }, false, ""},
		{"no image", "/inject/agent", "v1.36.3", func(c *Config, _ *admissionv1.AdmissionRequest) { c.Image = "" }, false, "no image of the agent"},
		{"old cluster", "/inject/agent", "v1.28.9", nil, false, "no native sidecars"},
		{"managed cluster", "/inject/agent", "v1.31+.2", nil, true, ""},
		{"cluster not known", "/inject/agent", "", nil, false, "does not know yet"},
		{"update", "/inject/agent", "v1.36.3", func(_ *Config, r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Update }, false, ""},
		{"subresource", "/inject/agent", "v1.36.3", func(_ *Config, r *admissionv1.AdmissionRequest) { r.SubResource = "status" }, false, ""},
		{"another kind", "/inject/agent", "v1.36.3", func(_ *Config, r *admissionv1.AdmissionRequest) { r.Kind.Kind = "Deployment" }, false, ""},
		{"unreadable pod", "/inject/agent", "v1.36.3", func(_ *Config, r *admissionv1.AdmissionRequest) { r.Object.Raw = []byte(`{"spec": 5}`) }, false, "read pod"},
		{"no pod", "/inject/agent", "v1.36.3", func(_ *Config, r *admissionv1.AdmissionRequest) { r.Object.Raw = nil }, false, "read pod"},
		{"field of tomorrow", "/inject/configure", "v1.36.3", func(_ *Config, r *admissionv1.AdmissionRequest) {
			r.Object.Raw = bytes.Replace(r.Object.Raw, []byte(`"spec":{`), []byte(`"spec":{"tomorrow":{"a":1},`), 1)
		}, true, ""},
		{"panic", "/inject/agent", "v1.36.3", func(c *Config, _ *admissionv1.AdmissionRequest) { c.CPU = "not a quantity" }, false, "a fault in the injector"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg, req := testConfig(), podRequest(t, "deployment")
			s := newServer(t, cfg, tt.release)
			defer s.tls.Close()
			defer s.admin.Close()
			if tt.more != nil {
				tt.more(&s.cfg, req)
			}
			if tt.release != "" {
				s.learnVersion()
			}
			got := answer(t, s, tt.path, req)
			if !got.Allowed {
				t.Error("denied")
			}
			if (len(got.Patch) > 0) != tt.patched || tt.patched && *got.PatchType != admissionv1.PatchTypeJSONPatch {
				t.Errorf("patch %s", got.Patch)
			}
			if warnings := strings.Join(got.Warnings, "\n"); !strings.Contains(warnings, tt.warning) || tt.warning == "" && warnings != "" && !tt.patched {
				t.Errorf("warnings %q, want %q", warnings, tt.warning)
			}
		})
	}
}

func TestNoReview(t *testing.T) {
	s := newServer(t, testConfig(), "v1.36.3")
	defer s.tls.Close()
	defer s.admin.Close()
	for name, body := range map[string]string{"empty": "", "no JSON": "hello", "no request": `{"kind":"AdmissionReview"}`, "too large": `{"x":"` + strings.Repeat("a", maxReviewBytes) + `"}`} {
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/inject/agent", strings.NewReader(body)))
		if w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d", name, w.Code)
		}
	}
}

// TestReviewThatSwells: whoever reaches the port can't make much memory of few bytes.
func TestReviewThatSwells(t *testing.T) {
	s := newServer(t, testConfig(), "v1.36.3")
	defer s.tls.Close()
	defer s.admin.Close()
	for _, item := range []string{"{},", "0,", "null,"} {
		for _, n := range []int{maxReviewParts - 100, 1 << 20} {
			body := `{"request":{"uid":"u1","kind":{"kind":"Pod"},"operation":"CREATE","object":{"spec":{"containers":[` + strings.Repeat(item, n) + `{}]}}}}`
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			s.Handler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/inject/agent", strings.NewReader(body)))
			runtime.ReadMemStats(&after)
			if mib := (after.TotalAlloc - before.TotalAlloc) >> 20; mib > 256 {
				t.Errorf("%d of %q: %d MiB", n, item, mib)
			}
		}
	}
}

// TestManyVariables: a pod of many variables, as the API server shows it with the fields' managers, gets its agent.
func TestManyVariables(t *testing.T) {
	s := newServer(t, testConfig(), "v1.36.3")
	defer s.tls.Close()
	defer s.admin.Close()
	s.learnVersion()
	var env, managed strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&env, `{"name":"NAME_%d","value":"value %d"},`, i, i)
		fmt.Fprintf(&managed, `"k:{\"name\":\"NAME_%d\"}":{".":{},"f:name":{},"f:value":{}},`, i)
	}
	req := podRequest(t, "deployment")
	req.Object.Raw = fmt.Appendf(nil, `{"metadata":{"name":"p","managedFields":[{"manager":"m","fieldsV1":{%s"f:x":{}}}]},"spec":{"containers":[{"name":"c","image":"vllm/vllm-openai:v0.32.0","args":["--model","m"],"env":[%s{"name":"X"}]}]}}`, &managed, &env)
	if got := answer(t, s, "/inject/configure", req); len(got.Patch) == 0 {
		t.Errorf("no patch for %d bytes: %q", len(req.Object.Raw), got.Warnings)
	}
}

func fetch(t *testing.T, client *http.Client, url string) (int, string) {
	t.Helper()
	defer client.CloseIdleConnections()
	resp, err := client.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// TestServes runs it all: certificate made, configuration patched, TLS by the
// service's name with the bundle alone, probes, metrics, and an end.
func TestServes(t *testing.T) {
	cfg := testConfig()
	cfg.CheckEvery = 20 * time.Millisecond
	s := newServer(t, cfg, "v1.36.3")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	admin := "http://" + s.AdminAddr()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		code, body := fetch(t, http.DefaultClient, admin+"/readyz")
		if code == http.StatusOK {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("not ready: %d %s", code, body)
		}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.keeper.bundles(t)[1])
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "injector.ns.svc"}}}
	body, err := json.Marshal(admissionv1.AdmissionReview{Request: podRequest(t, "deployment")})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Post("https://"+s.Addr()+"/inject/configure", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	var out admissionv1.AdmissionReview
	err = json.NewDecoder(resp.Body).Decode(&out)
	resp.Body.Close()
	client.CloseIdleConnections()
	if err != nil || !out.Response.Allowed || len(out.Response.Patch) == 0 {
		t.Errorf("review: %v %+v", err, out.Response)
	}
	_, metrics := fetch(t, http.DefaultClient, admin+"/metrics")
	for _, want := range []string{
		`grapevine_injector_admissions_total{outcome="configure"} 1`, `grapevine_injector_admissions_total{outcome="agent"} 0`,
		`grapevine_injector_certificate_expiry_timestamp_seconds{certificate="serving"}`, "grapevine_injector_ready 1", "grapevine_injector_admission_seconds_count 1",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("%s is missing in\n%s", want, metrics)
		}
	}
	// The configuration goes: not ready, and it says why.
	if err := s.keeper.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(ctx, testWebhook, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		code, body := fetch(t, http.DefaultClient, admin+"/readyz")
		if code == http.StatusServiceUnavailable && strings.Contains(body, testWebhook) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("still ready: %d %s", code, body)
		}
	}
	if code, _ := fetch(t, http.DefaultClient, admin+"/livez"); code != http.StatusOK {
		t.Errorf("livez %d", code)
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestValidate(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Errorf("default: %v", err)
	}
	cfg := Default()
	cfg.Listen, cfg.CertSecret, cfg.Service, cfg.Webhook, cfg.CertLife, cfg.CheckEvery = "9443", "x", "/y", "", 0, -1
	cfg.LogLevel, cfg.LogFormat, cfg.CPU, cfg.Memory, cfg.Level, cfg.UID, cfg.NodeGPUs, cfg.PullPolicy, cfg.Join = "loud", "xml", "x", "-1", "off", -1, -1, "Often", []string{"a b"}
	err := cfg.Validate()
	for _, want := range []string{
		`listen "9443"`, `cert-secret "x"`, `service "/y"`, "webhook: empty", "cert-life 0s", "check-every -1ns", `log-level "loud"`, `log-format "xml"`,
		`agent-cpu "x"`, `agent-memory "-1"`, `level "off"`, "agent-uid -1", "node-gpus -1", `agent-pull-policy "Often"`, `gossip-join "a b"`,
	} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s is missing in\n%v", want, err)
		}
	}
}
