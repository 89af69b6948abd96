package network

import (
	"fmt"
	"strings"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/datapath"
)

// reportBigTCP reports what became of the options: a device may take no packets beyond 64 KiB.
func (n *Network) reportBigTCP(devices datapath.Devices) {
	const part = "big-tcp"
	asked := n.cfg.BigTCP()
	options := strings.Join(asked, " and ")
	switch size := max(devices.SegmentSize4, devices.SegmentSize6); {
	case len(asked) == 0:
	case size == 0:
		msg := fmt.Sprintf("%s without effect: device %s takes packets of up to %d bytes for segmentation", options, n.cfg.Host.Device, devices.SegmentLimit)
		n.cfg.Log.Warn("no BIG TCP on this node", "reason", msg)
		n.cfg.Components.Set(part, rest.StateWarning, msg)
	default:
		n.cfg.Components.Set(part, rest.StateOk, fmt.Sprintf("%s: up to %d bytes, in pods that are made from now on", options, size))
	}
}
