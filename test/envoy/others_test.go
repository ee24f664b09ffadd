package envoy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// These tests set Envoy up as other control planes do, to hold what deploy/gateways says of them.

// selfSigned writes a certificate and its key.
func selfSigned(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "picker"}, NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, block := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: cert}, "tls.key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
}

// Envoy AI Gateway: TLS to the picker, the response through it too, and a cluster that dials what the header says.
func asEnvoyAIGateway(b *bootstrap) {
	cluster := b.cluster("grapevine")
	cluster["transport_socket"] = object{
		"name": "envoy.transport_sockets.tls",
		"typed_config": object{
			"@type":              "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
			"common_tls_context": object{"validation_context": object{}},
		},
	}
	at(cluster, "health_checks", 0).(object)["tls_options"] = object{"alpn_protocols": []any{"h2"}} // theirs has none, the test does
	f := b.filter(0, "picker")
	f["processing_mode"] = object{
		"request_header_mode": "SEND", "request_body_mode": "FULL_DUPLEX_STREAMED", "request_trailer_mode": "SEND",
		"response_header_mode": "SEND", "response_body_mode": "FULL_DUPLEX_STREAMED", "response_trailer_mode": "SEND",
	}
	f["message_timeout"] = "300s"
	delete(f, "metadata_options")
	delete(f, "route_cache_action")
	m := b.connectionManager(0)
	filters := m["http_filters"].([]any)
	m["http_filters"] = []any{filters[0], filters[2]} // no observer
	pods := b.cluster("pods")
	for _, key := range []string{"cluster_type", "load_balancing_policy", "load_assignment"} {
		delete(pods, key)
	}
	pods["type"], pods["lb_policy"] = "ORIGINAL_DST", "CLUSTER_PROVIDED"
	pods["original_dst_lb_config"] = object{"use_http_header": true, "http_header_name": "x-gateway-destination-endpoint"}
}

func TestAsEnvoyAIGateway(t *testing.T) {
	cert, key := selfSigned(t)
	for name, tt := range map[string]struct {
		fallbacks string
		status    int
	}{"one endpoint": {"0", 200}, "a list": {"2", 503}} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, "full-duplex.yaml", fleetOptions{
				gateway: []string{"--ext-proc-cert-file", cert, "--ext-proc-key-file", key, "--ext-proc-fallbacks", tt.fallbacks},
				edit:    asEnvoyAIGateway,
			})
			text := words(1, 1500)
			mustPost(t, tt.status, f.url+chatPath, chat(text, 4, true), "X-Gateway-Destination-Endpoint", "192.0.2.1:80")
			if tt.status != http.StatusOK {
				return
			}
			home := f.last(t).Endpoint
			time.Sleep(300 * time.Millisecond)
			u := usageOf(t, mustPost(t, http.StatusOK, f.url+chatPath, chat(text, 4, true)).body)
			if r := f.last(t); r.Endpoint != home || r.PredictedCachedTokens < 1000 || r.PredictedCachedTokens != u.Details.CachedTokens || r.Outcome.CachedTokens != u.Details.CachedTokens {
				t.Errorf("at %s first, then %+v, %+v", home, r, r.Outcome)
			}
			// What the manifest says: a gateway that dies cuts running answers, one that is told to end does not.
			var wg sync.WaitGroup
			run := func(whole bool) {
				wg.Go(func() {
					a, err := post(t.Context(), f.url+chatPath, chat("hello", 1000, true))
					if got := err == nil && strings.HasSuffix(strings.TrimSpace(a.body), "[DONE]"); got != whole {
						t.Errorf("an answer was whole: %v, want %v", got, whole)
					}
				})
				f.reaches(t, 5*time.Second, 1, 0)
			}
			run(true)
			f.Gateways[0].Stop(30 * time.Second)
			wg.Wait()
			f.healthy(t, "grapevine", 0)
			if err := f.Gateways[0].Start(); err != nil {
				t.Fatal(err)
			}
			f.healthy(t, "grapevine", 1)
			run(false)
			f.Gateways[0].Kill()
			wg.Wait()
		})
	}
}

// Envoy Gateway: gRPC calls have a time-out of ten seconds, the override is by header alone and nobody is told who served.
func TestAsEnvoyGateway(t *testing.T) {
	f := newFleet(t, "full-duplex.yaml", fleetOptions{engines: 2, speedup: 1, edit: func(b *bootstrap) {
		for _, name := range []string{"picker", "observer"} {
			b.filter(0, name)["grpc_service"].(object)["timeout"] = "10s"
		}
		delete(b.filter(0, "observer")["grpc_service"].(object), "initial_metadata")
		policy := at(b.cluster("pods"), "load_balancing_policy", "policies", 0, "typed_extension_config", "typed_config").(object)
		policy["override_host_sources"] = []any{object{"header": "x-gateway-destination-endpoint"}}
		delete(policy, "selected_host_key")
	}})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i := range 2 { // both are busy for a quarter of a minute
		wg.Go(func() { _, _ = post(ctx, f.url+"/v1/completions", tokens(i, 100_000, 1)) })
		f.reaches(t, 5*time.Second, i+1, 0)
	}
	a := mustPost(t, http.StatusOK, f.url+"/v1/completions", tokens(3, 1000, 1))
	usageOf(t, a.body)
	r := f.last(t)
	if r.HeldMs < 11_000 {
		t.Errorf("held for %.0f ms, want more than Envoy Gateway's time-out for gRPC calls", r.HeldMs)
	}
	f.engine(r.Endpoint).Kill()
	for range 3 {
		mustPost(t, http.StatusOK, f.url+"/v1/completions", tokens(3, 1000, 1))
	}
}
