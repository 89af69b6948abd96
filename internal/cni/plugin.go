package cni

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/deletequeue"
	"github.com/hawser-net/hawser/pkg/retry"
)

// How long to wait for the agent. Tries are not counted: see retrying.
const (
	StartTimeout  = 30 * time.Second // ADD, each call: for an agent that is starting or busy
	deleteTimeout = 10 * time.Second // DEL: for an answer, before the deletion is queued
	queueTimeout  = 1500 * time.Millisecond
	statusTimeout = 5 * time.Second
	undoTimeout   = 15 * time.Second
	retryMin      = 20 * time.Millisecond
	retryMax      = 500 * time.Millisecond
)

// Error codes of the plugin's own; the specification leaves 100 and up to plugins, 50 to STATUS.
const (
	codeNotAvailable  = 50
	codeHealthzFailed = 100
	codeUnhealthy     = 101
)

// The steps that a Plugin reports, in the order of their happening.
const (
	StepAddStart    = "add-start"    // nothing was done yet
	StepAddConfig   = "add-config"   // the agent's configuration is known
	StepAddIP       = "add-ip"       // addresses are allocated
	StepAddLink     = "add-link"     // the interface exists, unconfigured
	StepAddPod      = "add-pod"      // the pod's end is configured
	StepAddEndpoint = "add-endpoint" // the agent has created the endpoint
	StepAddResult   = "add-result"   // the result was printed
	StepDelStart    = "del-start"    // nothing was done yet
	StepDelEndpoint = "del-endpoint" // the agent has deleted the endpoint, or the deletion is queued
	StepDelLink     = "del-link"     // the interface is gone or the agent's to remove
)

// Steps lists all steps, for tests that interrupt the plugin at each.
func Steps() []string {
	return []string{
		StepAddStart, StepAddConfig, StepAddIP, StepAddLink, StepAddPod, StepAddEndpoint, StepAddResult,
		StepDelStart, StepDelEndpoint, StepDelLink,
	}
}

// Plugin holds the edges of the process. Its commands are for one process each: Main is called
// once.
type Plugin struct {
	// Getenv reads the environment.
	Getenv func(string) string
	// Step is called after each step of ADD and DEL; nil calls nothing.
	Step func(name string)
}

// Main runs the command that the environment asks for with the configuration on standard input,
// prints the result or the error to standard output as the specification wants, and returns the
// exit code.
func (p *Plugin) Main() int {
	err := skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add: p.add, Del: p.del, Check: p.check, Status: p.status, GC: p.gc,
	}, version.PluginSupports("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"), "Hawser CNI plugin")
	if err == nil {
		return 0
	}
	if err.Print() != nil {
		return 2 // our output is not read
	}
	return 1
}

func (p *Plugin) step(name string) {
	if p.Step != nil {
		p.Step(name)
	}
}

// interruptible returns a context that ends when the runtime times out, so that what was begun
// is undone. A runtime that kills outright sends DEL.
func interruptible() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
}

func (p *Plugin) agent(c netConf) (*client.Client, error) {
	agent, err := client.New(client.Host(c.SocketPath, p.Getenv))
	if err != nil {
		return nil, fail(cnitypes.ErrInvalidNetworkConfig, "socket-path", err)
	}
	return agent, nil
}

// queueDir is next to the agent's socket.
func queueDir(agent *client.Client) string {
	if path, ok := strings.CutPrefix(agent.Host(), "unix://"); ok {
		return filepath.Join(filepath.Dir(path), filepath.Base(deletequeue.DefaultDir))
	}
	return deletequeue.DefaultDir
}

// attachmentID is what the agent finds an endpoint by.
func attachmentID(containerID, ifName string) string {
	return "cni-attachment-id:" + containerID + ":" + ifName
}

// hostIfPrefix begins the names of interfaces on the host. It is EndpointPrefix of
// internal/datapath/link, on which the plugin does not depend.
const hostIfPrefix = "lxc"

// hostIfName is the name of an attachment's interface on the host: 15 characters, the longest that
// Linux takes.
func hostIfName(containerID, ifName string) string {
	sum := sha256.Sum256([]byte(containerID + ":" + ifName))
	return hostIfPrefix + hex.EncodeToString(sum[:])[:12]
}

// fail makes an error of the specification.
func fail(code uint, what string, err error) *cnitypes.Error {
	return cnitypes.NewError(code, what, err.Error())
}

// agentError converts a failed call into one, which tells the runtime whether to retry.
func agentError(what string, err error) *cnitypes.Error {
	if notNow(err) {
		return fail(cnitypes.ErrTryAgainLater, what, err)
	}
	return fail(cnitypes.ErrInternal, what, err)
}

// notNow reports whether the agent certainly did nothing, but would do it later: it is not there,
// its API is not open yet, or it is busy.
func notNow(err error) bool {
	code := client.StatusCode(err)
	return client.Unreachable(err) || code == http.StatusServiceUnavailable || code == http.StatusTooManyRequests
}

// refusedForNow is notNow of an agent that has answered: without an answer it may have done what a
// second request would do once more.
func refusedForNow(err error) bool { return client.StatusCode(err) != 0 && notNow(err) }

// retrying calls fn until it succeeds, fails for good according to again, or ctx or the time for an
// agent's start ends.
func retrying(ctx context.Context, again func(error) bool, fn func(context.Context) error) error {
	deadline := time.Now().Add(StartTimeout)
	wait := retryMin
	for {
		err := fn(ctx)
		if err == nil || !again(err) || time.Now().Add(wait).After(deadline) {
			return err
		}
		if !retry.Sleep(ctx, wait) {
			return errors.Join(err, ctx.Err())
		}
		wait = min(2*wait, retryMax)
	}
}

// queue hands a deletion to an agent that does not answer. last is tried once the queue is locked:
// the agent may just have become ready, and then won't look into the queue again. It returns
// whether last succeeded.
func queue(agent *client.Client, e deletequeue.Entry, last func(context.Context) error) (done bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), queueTimeout)
	defer cancel()
	w, err := deletequeue.Hold(ctx, queueDir(agent))
	if err != nil {
		return false, err
	}
	defer w.Close()
	if err := last(ctx); err == nil {
		return true, nil
	}
	if err := w.Add(e); err != nil {
		return false, fmt.Errorf("queue the deletion for the agent: %w", err)
	}
	return false, nil
}
