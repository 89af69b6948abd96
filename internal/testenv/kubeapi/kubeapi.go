// Package kubeapi gives tests a real kube-apiserver. It is apart from testenv because it links
// client-go, which few tests need.
package kubeapi

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hawser-net/hawser/internal/sandbox/kube/parts"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// Version is the version of Kubernetes that tests run against.
const Version = parts.Version

// Server is a real kube-apiserver of its own, with an etcd of its own: an API without nodes,
// controllers and pods that run. It listens on a port of the loopback.
type Server struct {
	// Config is a client's configuration with all rights. Copy it before changing it.
	Config *rest.Config

	t    testing.TB
	path string
	args []string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
}

// program returns the path of a program of Kubernetes, where the package parts keeps it.
func program(t testing.TB, name string) string {
	t.Helper()
	dir, err := parts.Dir()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("needs %s of Kubernetes: `make %s` builds it (%v)", name, name, err)
	}
	return path
}

// Start starts a kube-apiserver and stops it when the test ends. It returns when the server is
// ready, which takes some seconds: tests of a package share one and use names of their own.
func Start(t testing.TB, flags ...string) *Server {
	t.Helper()
	k := &Server{t: t, path: program(t, "kube-apiserver")}
	etcd := kvstoretest.StartEtcd(t)
	dir, err := os.MkdirTemp("", "hawser-kube-")
	if err != nil {
		t.Fatalf("kube-apiserver directory: %v", err)
	}
	t.Cleanup(func() {
		k.Stop()
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove %s: %v", dir, err)
		}
	})
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatalf("write %s: %v", path, err)
		}
		return path
	}
	cert, key := certificate(t)
	certFile, keyFile := write("server.crt", cert), write("server.key", key) // the key is that of service accounts, too
	secret := make([]byte, 16)
	if _, err := rand.Read(secret); err != nil {
		t.Fatalf("token: %v", err)
	}
	token := hex.EncodeToString(secret)
	tokens := write("tokens.csv", fmt.Appendf(nil, "%s,admin,admin,system:masters\n", token))
	port := holdPort(t)
	k.log = filepath.Join(dir, "kube-apiserver.log")
	k.args = []string{
		"--etcd-servers=" + etcd.Endpoint(), fmt.Sprintf("--secure-port=%d", port), "--permit-port-sharing=true", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
		"--tls-cert-file=" + certFile, "--tls-private-key-file=" + keyFile, "--token-auth-file=" + tokens, "--authorization-mode=RBAC", "--allow-privileged=true",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + keyFile, "--service-account-signing-key-file=" + keyFile,
		"--service-cluster-ip-range=10.96.0.0/16", "--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none",
	}
	k.args = append(k.args, flags...)
	k.Config = &rest.Config{
		Host: fmt.Sprintf("https://127.0.0.1:%d", port), BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1,
	}
	k.Start()
	return k
}

// holdPort returns a port of the loopback that no other process gets until the test ends, also
// while the server has not started yet, or is stopped. What holds it does not listen: who connects
// then is refused.
func holdPort(t testing.TB) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("hold a port: %v", err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) // as the server does
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	if err != nil {
		t.Fatalf("hold a port: %v", err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatalf("hold a port: %v", err)
	}
	return at.(*unix.SockaddrInet4).Port
}

// certificate makes a key and a certificate for it. A server that is given none makes a key of RSA,
// which is far more work.
func certificate(t testing.TB) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("key of kube-apiserver: %v", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		t.Fatalf("certificate of kube-apiserver: %v", err)
	}
	text, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatalf("key of kube-apiserver: %v", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text})
}

// Start starts the server again after Stop, at the same address and with the same objects.
func (k *Server) Start() {
	k.t.Helper()
	if k.cmd != nil {
		return
	}
	log, err := os.OpenFile(k.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		k.t.Fatalf("kube-apiserver log: %v", err)
	}
	defer log.Close()
	cmd := exec.Command(k.path, k.args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		// The kernel sends the signal when the thread ends that started the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		k.t.Fatalf("start kube-apiserver: %v", err)
	}
	k.cmd, k.done = cmd, done
	client, err := kubernetes.NewForConfig(k.Config)
	if err != nil {
		k.t.Fatalf("client: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for {
		if _, err = client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err == nil {
			return
		}
		select {
		case <-done:
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
			continue
		}
		text, _ := os.ReadFile(k.log)
		k.t.Fatalf("kube-apiserver is not ready: %v\n%s", err, text[max(0, len(text)-4000):])
	}
}

// Stop kills the server; its objects stay in etcd.
func (k *Server) Stop() {
	if k.cmd == nil {
		return
	}
	_ = k.cmd.Process.Kill()
	<-k.done
	k.cmd = nil
}
