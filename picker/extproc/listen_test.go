package extproc

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

func TestUnixSocket(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	left, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	left.(*net.UnixListener).SetUnlinkOnClose(false)
	if _, err := listen("unix://" + path); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a socket in use: %v", err)
	}
	left.Close() // as a process that was killed
	r := newRig(t, setup{config: func(c *Config) { c.Listen = []string{"127.0.0.1:0", "unix://" + path} }})
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("socket has mode %v, %v; want 0660", info.Mode().Perm(), err)
	}
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r.conn = conn
	e := r.open()
	e.send(post(fullDuplex, none), chunk(chatBody(10, ""), true))
	e.picked(false)
	r.stop()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("socket is there after the end: %v", err)
	}

	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listen("unix://" + file); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a file in the way: %v", err)
	}
	if text, _ := os.ReadFile(file); string(text) != "precious" {
		t.Error("the file was removed")
	}
}

// TestCertificate: read again when it changes; a damaged one is not taken over.
func TestCertificate(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	writeCertificate(t, cert, key, "first")
	r := newRig(t, setup{config: func(c *Config) { c.CertFile, c.KeyFile = cert, key }})
	name := func() (name string) {
		c := &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(s tls.ConnectionState) error {
			name = s.PeerCertificates[0].Subject.CommonName
			return nil
		}}
		conn, err := grpc.NewClient(r.server.Addrs()[0].String(), grpc.WithTransportCredentials(credentials.NewTLS(c)))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		old := r.conn
		r.conn = conn
		e := r.open()
		e.send(post(fullDuplex, none), chunk(chatBody(10, ""), true))
		e.picked(false)
		r.conn = old
		return name
	}
	if got := name(); got != "first" {
		t.Errorf("certificate of %q, want the first", got)
	}
	writeCertificate(t, cert, key, "second")
	waitFor(t, "the second certificate", func() bool { return name() == "second" })
	if err := os.WriteFile(cert, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	time.Sleep(certificateAge + 10*time.Millisecond)
	if got := name(); got != "second" {
		t.Errorf("certificate of %q after a damaged one, want the second", got)
	}
	writeCertificate(t, cert, key, "third")
	waitFor(t, "the third certificate", func() bool { return name() == "third" })

	cfg := Default()
	cfg.Listen, cfg.CertFile, cfg.KeyFile = []string{"127.0.0.1:0"}, filepath.Join(dir, "none"), key
	s, err := New(cfg, Options{Picker: r.picker, Resolver: noPrompts{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(); err == nil || !strings.Contains(err.Error(), "read certificate") {
		t.Errorf("without a certificate: %v", err)
	}
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(5 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("no sign of %s", what)
		}
	}
}

func writeCertificate(t *testing.T, cert, key, name string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotAfter: time.Now().Add(time.Hour)}
	template.Subject.CommonName = name
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{key: {Type: "PRIVATE KEY", Bytes: keyDER}, cert: {Type: "CERTIFICATE", Bytes: der}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestListenersThatCannotBe(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	r := newRig(t, setup{})
	tests := []struct {
		name   string
		change func(*Config)
		want   []string
	}{
		{"taken", func(c *Config) { c.Listen = []string{taken.Addr().String()} }, []string{taken.Addr().String(), "--ext-proc-listen"}},
		{"taken for health", func(c *Config) { c.Listen, c.HealthListen = []string{"127.0.0.1:0"}, taken.Addr().String() }, []string{taken.Addr().String(), "--ext-proc-health-listen"}},
		{"a pool that nobody watches", func(c *Config) { c.Listen = []string{"ns/a=127.0.0.1:0"} }, []string{"ns/a=127.0.0.1:0", "--kubernetes-inference-pools"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := Default()
			tt.change(&cfg)
			s, err := New(cfg, Options{Picker: r.picker, Resolver: noPrompts{}})
			if err != nil {
				t.Fatal(err)
			}
			err = s.Listen()
			for _, want := range tt.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v does not say %s", err, want)
				}
			}
		})
	}
}

func TestValidate(t *testing.T) {
	good := Default()
	good.Listen = []string{":9002", "unix:///run/picker.sock", "ns/a=:9004", "ns/b=unix:///run/b.sock"}
	good.HealthListen = "127.0.0.1:9003"
	if err := good.Validate(); err != nil {
		t.Errorf("%+v: %v", good, err)
	}
	bad := Config{Listen: []string{"9002", "unix://run/picker.sock", "ns/a="}, HealthListen: "x", CertFile: "c", Deadline: -1, Fallbacks: 99, BufferedHold: -1}
	err := bad.Validate()
	for _, want := range []string{
		`ext-proc.listen = "9002"`, `ext-proc.listen = "unix://run/picker.sock"`, `ext-proc.listen = "ns/a="`, `ext-proc.health-listen = "x"`, `ext-proc.cert-file = "c"`,
		`ext-proc.deadline = "-1ns" is not positive`, `ext-proc.fallbacks = "99" is out of range; give 0 to 16`, `ext-proc.buffered-hold = "-1ns"`, `ext-proc.unobserved = "0s"`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\ndoes not say %s", err, want)
		}
	}
}
