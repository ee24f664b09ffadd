package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/test/cluster"
)

// The addresses of the test's own network namespace. The API server is reached at bridgeIP from pods.
const (
	bridgeIP   = "10.64.0.1"
	podCIDR    = "10.64.0.0/16" // pods that really run
	kwokCIDR   = "10.65.0.0/16" // pods that only exist as objects
	adminToken = "admin-token"
	apiPort    = "6443"
)

// plane is a control plane: etcd, API server, controllers and nodes.
type plane struct {
	*client          // as the cluster's administrator
	dir       string // logs, certificates and data
	parts     string // folder with the Kubernetes binaries
	tree      string // folder with Grapevine's
	ca        []byte // PEM, of the API server's certificate
	etcd      *cluster.Process
	apiserver *cluster.Process
	kubelet   *kubelet
	kubeconf  string // of the administrator
}

// needParts skips the test unless `make test-kube` prepared everything.
func needParts(t *testing.T) (parts, tree string) {
	t.Helper()
	parts, tree = os.Getenv("GRAPEVINE_KUBE_BIN"), os.Getenv("GRAPEVINE_BIN_DIR")
	if parts == "" || tree == "" {
		t.Skip("no control plane: run `make test-kube`, which builds one and sets GRAPEVINE_KUBE_BIN and GRAPEVINE_BIN_DIR")
	}
	links, err := net.Interfaces()
	if err != nil || len(links) != 1 || os.Getuid() != 0 {
		t.Skip("not in a network namespace of its own: run `make test-kube`, which makes one")
	}
	return parts, tree
}

// newPlane starts a control plane and one node whose pods really run.
func newPlane(t *testing.T) *plane {
	parts, tree := needParts(t)
	p := &plane{parts: parts, tree: tree, dir: t.TempDir()}
	if keep := os.Getenv("GRAPEVINE_LOGS"); keep != "" {
		p.dir = keep
	}
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() && os.Getenv("GRAPEVINE_LOGS") == "" {
			t.Log("logs are kept with GRAPEVINE_LOGS=folder")
		}
	})
	p.network(t)
	p.certificates(t)
	p.etcd = p.start(t, "etcd", "--data-dir", t.TempDir(), "--unsafe-no-fsync", "--logger", "zap", "--log-level", "warn",
		"--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379",
		"--listen-peer-urls", "http://127.0.0.1:2380", "--initial-advertise-peer-urls", "http://127.0.0.1:2380", "--initial-cluster", "default=http://127.0.0.1:2380")
	p.apiserver = p.start(t, "kube-apiserver", p.apiserverArgs()...)
	p.client = newClient("https://127.0.0.1:"+apiPort, adminToken, p.ca)
	p.waitReady(t)
	p.start(t, "kube-controller-manager", "--kubeconfig", p.kubeconf, "--leader-elect=false", "--bind-address=127.0.0.1",
		"--service-account-private-key-file", p.file("sa.key"), "--root-ca-file", p.file("ca.crt"), "--use-service-account-credentials=false",
		"--concurrent-deployment-syncs=5", "--kube-api-qps=200", "--kube-api-burst=400",
		"--controllers="+strings.Join([]string{
			"serviceaccount-controller", "root-ca-certificate-publisher-controller", "namespace-controller", "garbage-collector-controller",
			"deployment-controller", "replicaset-controller", "statefulset-controller", "endpointslice-controller", "disruption-controller", "resourcequota-controller",
		}, ","))
	p.kubelet = startKubelet(t, p, "real-0")
	return p
}

func (p *plane) apiserverArgs() []string {
	return []string{
		"--etcd-servers=http://127.0.0.1:2379", "--bind-address=0.0.0.0", "--advertise-address=" + bridgeIP, "--secure-port=" + apiPort,
		"--tls-cert-file=" + p.file("api.crt"), "--tls-private-key-file=" + p.file("api.key"), "--cert-dir=" + p.dir,
		"--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true", "--authorization-mode=RBAC",
		"--token-auth-file=" + p.file("tokens.csv"), "--endpoint-reconciler-type=none",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + p.file("sa.key"), "--service-account-signing-key-file=" + p.file("sa.key"),
		// Webhooks are given as Services. There is no kube-proxy: the API server itself looks up a Service's pods.
		"--enable-aggregator-routing=true",
		"--max-requests-inflight=2000", "--max-mutating-requests-inflight=1000",
	}
}

func (p *plane) file(name string) string { return filepath.Join(p.dir, name) }

// start runs a part of the control plane until the test ends.
func (p *plane) start(t *testing.T, part string, args ...string) *cluster.Process {
	t.Helper()
	proc, err := cluster.StartProcess(filepath.Join(p.parts, part), part, p.dir, args...)
	if err != nil {
		t.Fatalf("%v: run scripts/kube-parts.sh", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last lines of %s:\n%s", part, proc.Tail(15))
		}
		proc.Kill()
	})
	return proc
}

func (p *plane) waitReady(t *testing.T) {
	t.Helper()
	eventually(t, 2*time.Minute, "the API server to be ready", func() error {
		select {
		case <-p.apiserver.Ended():
			t.Fatalf("the API server ended:\n%s", p.apiserver.Tail(20))
		default:
		}
		_, err := p.raw(http.MethodGet, "/readyz", "", nil)
		return err
	})
}

// network makes the bridge that pods hang on.
func (p *plane) network(t *testing.T) {
	t.Helper()
	for _, line := range []string{
		"ip link set lo up", "ip link add gv0 type bridge", "ip addr add " + bridgeIP + "/16 dev gv0", "ip link set gv0 up", "mkdir -p /run/netns",
	} {
		shell(t, line)
	}
}

// certificates writes the API server's certificate, the key of ServiceAccount tokens and the administrator's token.
func (p *plane) certificates(t *testing.T) {
	t.Helper()
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	write := func(name, kind string, der []byte) {
		if err := os.WriteFile(p.file(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	writeKey := func(name string, k *ecdsa.PrivateKey) {
		der, err := x509.MarshalECPrivateKey(k)
		if err != nil {
			t.Fatal(err)
		}
		write(name, "EC PRIVATE KEY", der)
	}
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test-ca"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caKey, apiKey := key(), key()
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	api := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{"kubernetes.default.svc", "localhost"}, IPAddresses: []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP(bridgeIP), net.ParseIP("10.96.0.1")},
	}
	apiDER, err := x509.CreateCertificate(rand.Reader, api, ca, apiKey.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	write("ca.crt", "CERTIFICATE", caDER)
	write("api.crt", "CERTIFICATE", apiDER)
	writeKey("api.key", apiKey)
	writeKey("sa.key", key())
	p.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})
	if err := os.WriteFile(p.file("tokens.csv"), []byte(adminToken+",admin,1,system:masters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.kubeconf = p.kubeconfig(t, "admin", adminToken)
}

// kubeconfig writes one for a token.
func (p *plane) kubeconfig(t *testing.T, name, token string) string {
	t.Helper()
	path := p.file(name + ".kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://%s:%s", certificate-authority: %q}}]
users: [{name: u, user: {token: %q}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, bridgeIP, apiPort, p.file("ca.crt"), token)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// run executes one of the parts as the administrator with the given standard input.
func (p *plane) run(stdin, part string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(p.parts, part), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.kubeconf, "HOME="+p.dir)
	cmd.Stdin = strings.NewReader(stdin)
	var out, problem strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &problem
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w\n%s", part, strings.Join(args, " "), err, problem.String())
	}
	return out.String(), nil
}

func (p *plane) kubectl(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	out, err := p.run(stdin, "kubectl", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// shell runs a command line that must succeed.
func shell(t *testing.T, line string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", line).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

// eventually polls until ready returns nil.
func eventually(t *testing.T, limit time.Duration, what string, ready func() error) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		err := ready()
		if err == nil {
			return time.Since(began)
		}
		if time.Since(began) > limit {
			t.Fatalf("%s: not within %v: %v", what, limit, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

var errNotYet = errors.New("not yet")

func trust(ca []byte) *tls.Config {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}
