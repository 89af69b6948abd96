package scale

import (
	"context"
	"fmt"
	"time"

	"github.com/hawser-net/hawser/internal/bench/child"
	"github.com/hawser-net/hawser/internal/bench/scale/traffic"
)

// traffic asks the API server for its metrics.
func (c *cluster) traffic(ctx context.Context) (traffic.Traffic, error) {
	raw, err := c.client.Urgent.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return traffic.Traffic{}, fmt.Errorf("metrics of the API server: %w", err)
	}
	return traffic.Parse(raw)
}

// load is what the processes of a cluster, and this one, used of the machine during a stretch of
// time.
type load struct {
	began time.Time
	first map[string]time.Duration
}

// processes returns the processes that take part, by the name that the report has for them.
func (c *cluster) processes() map[string][]*child.Process {
	out := map[string][]*child.Process{"etcd": {c.etcd}, "kube-apiserver": {c.api}}
	for _, p := range c.operators {
		if !p.Ended() {
			out["operators"] = append(out["operators"], p)
		}
	}
	return out
}

// harness is this process's name in the report.
const harness = "harness, with all stub agents"

func (c *cluster) processorTime() map[string]time.Duration {
	out := map[string]time.Duration{}
	for name, list := range c.processes() {
		for _, p := range list {
			if u, err := p.Usage(); err == nil {
				out[name] += u.CPU
			}
		}
	}
	if u, err := child.Usage(selfPID()); err == nil {
		out[harness] = u.CPU
	}
	return out
}

// startLoad begins a stretch.
func (c *cluster) startLoad() load { return load{time.Now(), c.processorTime()} }

// end returns processors used by each on average: 2 on two cores is all there is. A process that
// ended on the way counts for nothing.
func (l load) end(c *cluster) map[string]float64 {
	took := time.Since(l.began).Seconds()
	out := map[string]float64{}
	for name, d := range c.processorTime() {
		out[name] = max(0, (d-l.first[name]).Seconds()/took)
	}
	return out
}
