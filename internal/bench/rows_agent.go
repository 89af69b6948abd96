package bench

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"
)

func (b *bencher) agentStart(ctx context.Context, r *testbed) (err error) {
	if err := r.writePolicy("many.yaml", manyRules(flowRules)); err != nil {
		return err
	}
	n := r.nodes[0]
	start := time.Now()
	if err := r.startAgents(ctx); err != nil {
		return err
	}
	first := time.Since(start)
	const endpoints = 23
	for i := range endpoints {
		if _, err := n.addPod(fmt.Sprintf("p%d", i), []string{"client", "server"}[i%2]); err != nil {
			return err
		}
	}
	var took pairs
	for range pick(b, 9, 3) {
		n.agent.Kill()
		start := time.Now()
		if err := exec.Command(filepath.Join(b.cfg.BinDir, "hawser-agent"), "--version").Run(); err != nil {
			return err
		}
		alone := time.Since(start)
		start = time.Now()
		if err := n.start(); err != nil {
			return err
		}
		if err := n.waitReady(ctx); err != nil {
			return err
		}
		took.add(ms(time.Since(start)), ms(alone))
	}
	const baseline = "the agent's program executed to print its version"
	b.add(took.fill(Figure{Row: "start", Name: "killed agent to ready, 23 endpoints", Unit: "ms", BaselineName: baseline, First: 1000, Far: 300}))
	b.add(Figure{Row: "start", Name: "first start of a node", Unit: "ms", Value: ms(first), Samples: 1})
	return nil
}

func (b *bencher) agentMemory(ctx context.Context, r *testbed) (err error) {
	if err := r.startAgents(ctx); err != nil {
		return err
	}
	n := r.nodes[0]
	time.Sleep(2 * time.Second) // what a start leaves behind is no idle memory
	idle, err := n.memory()
	if err != nil {
		return err
	}
	b.add(Figure{Row: "memory", Name: "agent at rest", Unit: "MB", Value: idle / 1e6, First: 60, Far: 40, Samples: 1})

	pods := pick(b, 50_000, 10_000)
	const identities = 200
	if err := r.etcd.put(ctx, 2*identities, identityKeys); err != nil {
		return err
	}
	before, err := n.memory()
	if err != nil {
		return err
	}
	start := time.Now()
	if err := r.etcd.put(ctx, pods, func(i int) (string, string) { return remotePod(i, identities) }); err != nil {
		return err
	}
	written := time.Since(start)
	if err := n.waitAddresses(ctx, pods); err != nil {
		return err
	}
	arrived := time.Since(start)
	time.Sleep(2 * time.Second)
	after, err := n.memory()
	if err != nil {
		return err
	}
	note := fmt.Sprintf("%d pods, resident set as it stands", pods)
	b.add(Figure{Row: "memory", Name: "per remote pod, arriving one by one", Unit: "B", Value: (after - before) / float64(pods), First: 500, Far: 200, Samples: pods, Note: note})
	b.add(Figure{Row: "memory", Name: "remote pods until in the kernel", Unit: "pods/s", Value: float64(pods) / arrived.Seconds(),
		Baseline: float64(pods) / written.Seconds(), BaselineName: "writing their keys, 100 a transaction", Higher: true, Samples: pods})

	// A restarted agent reads them all at once.
	if err := n.agent.Stop(15 * time.Second); err != nil {
		return err
	}
	start = time.Now()
	if err := n.start(); err != nil {
		return err
	}
	if err := n.waitReady(ctx); err != nil {
		return err
	}
	b.add(Figure{Row: "memory", Name: fmt.Sprintf("start to ready, %d remote pods", pods), Unit: "ms", Value: ms(time.Since(start)), Samples: 1})
	time.Sleep(3 * time.Second)
	restarted, err := n.memory()
	if err != nil {
		return err
	}
	b.add(Figure{Row: "memory", Name: "per remote pod, after a restart", Unit: "B", Value: (restarted - idle) / float64(pods), First: 500, Far: 200, Samples: pods, Note: note})
	return nil
}
