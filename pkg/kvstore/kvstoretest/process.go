package kvstoretest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/hawser-net/hawser/pkg/kvstore/etcd/member"
)

// startTimeout bounds how long a program that serves etcd may take to be ready.
const startTimeout = time.Minute

// config is what a server of etcd is started with.
type config struct {
	Dir           string
	Client        url.URL // where clients are served
	Peer          string  // path of the socket that other members would use
	Cert, Key, CA string  // of a server that speaks TLS; the authority is that of its clients
}

func (c config) member() member.Member {
	m := member.Member{Name: "test", Dir: c.Dir, PeerSocket: c.Peer, Listen: []url.URL{c.Client}}
	if c.Cert != "" {
		m.TLS.ClientCertAuth = true
		m.TLS.CertFile, m.TLS.KeyFile, m.TLS.TrustedCAFile = c.Cert, c.Key, c.CA
	}
	return m
}

// ServeEtcd serves a member of etcd until ctx ends, and writes a line to ready when it answers. It
// is the program that HAWSER_ETCD names; what is what [StartEtcd] starts that with.
func ServeEtcd(ctx context.Context, what string, ready io.Writer) error {
	var c config
	if err := json.Unmarshal([]byte(what), &c); err != nil {
		return fmt.Errorf("what to serve: %w", err)
	}
	server, err := c.member().Start(ctx)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(ready, "ready"); err != nil {
		server.Close()
		return err
	}
	return member.Wait(ctx, server)
}

// process is a server that runs as a program of its own.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// run starts the server as a program, with a file for its output. It returns when the server
// answers.
func (c config) run(program, log string) (*process, error) {
	what, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	said, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer said.Close()
	p := &process{cmd: exec.Command(program, string(what)), done: make(chan struct{})}
	p.cmd.Stderr = said
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	ready := make(chan error, 1)
	go func() {
		defer close(p.done)
		// The kernel sends the signal when the thread ends that started the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		if err == nil {
			_, err = io.ReadFull(out, make([]byte, len("ready\n")))
		}
		ready <- err
		if p.cmd.Process != nil {
			_ = p.cmd.Wait()
		}
	}()
	select {
	case err = <-ready:
	case <-time.After(startTimeout):
		return nil, fmt.Errorf("etcd is not ready after %v", startTimeout) // it ends with this process
	}
	if err != nil {
		if p.cmd.Process != nil {
			p.stop()
		}
		text, _ := os.ReadFile(log)
		return nil, errors.Join(fmt.Errorf("start etcd: %w", err), fmt.Errorf("its output: %s", text[max(0, len(text)-2000):]))
	}
	return p, nil
}

// stop ends the server in order, and waits for it.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return
	case <-time.After(10 * time.Second):
	}
	_ = p.cmd.Process.Kill()
	<-p.done
}
