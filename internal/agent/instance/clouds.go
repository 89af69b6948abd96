package instance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// tokenSeconds is how long a token holds: longer than all that is read with it takes.
const tokenSeconds = "60"

// values reads single values below a path, with a token that was asked for first.
type values struct {
	*service
	ctx          context.Context
	root         string
	header, mark string // the token
	err          error  // of the first that could not be read
}

// withToken asks for a token by PUT, which a server-side request forgery can rarely send.
func (s *service) withToken(ctx context.Context, root, header, ttlHeader string) (*values, error) {
	token, err := s.ask(ctx, http.MethodPut, "/latest/api/token", ttlHeader, tokenSeconds)
	if err != nil {
		return nil, err
	}
	if token == "" || len(token) > 4096 || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, errors.New("the metadata service returned an invalid token")
	}
	return &values{service: s, ctx: ctx, root: root, header: header, mark: token}, nil
}

// get returns a value without the white space around it; "" after an error.
func (v *values) get(path string) string {
	if v.err != nil {
		return ""
	}
	text, err := v.ask(v.ctx, http.MethodGet, v.root+path, v.header, v.mark)
	v.err = err
	return strings.TrimSpace(text)
}

// optional is get for a value that not every machine has.
func (v *values) optional(path string) string {
	text := v.get(path)
	if notFound(v.err) {
		v.err = nil
	}
	return text
}

// readAWS reads by version 2 of the service only ("Instance metadata categories").
func readAWS(ctx context.Context, s *service) (Facts, error) {
	v, err := s.withToken(ctx, "/latest/meta-data/", "X-aws-ec2-metadata-token", "X-aws-ec2-metadata-token-ttl-seconds")
	if err != nil {
		return Facts{}, err
	}
	f := Facts{ID: v.get("instance-id"), Type: v.get("instance-type"), Zone: v.get("placement/availability-zone"), MAC: v.get("mac")}
	of := "network/interfaces/macs/" + url.PathEscape(f.MAC) + "/"
	f.VPC, f.Subnet, f.VPCRange = v.get(of+"vpc-id"), v.get(of+"subnet-id"), v.optional(of+"vpc-ipv4-cidr-block")
	return f, v.err
}

// readAlibaba reads in the security hardening mode, which every instance has.
func readAlibaba(ctx context.Context, s *service) (Facts, error) {
	v, err := s.withToken(ctx, "/latest/meta-data/", "X-aliyun-ecs-metadata-token", "X-aliyun-ecs-metadata-token-ttl-seconds")
	if err != nil {
		return Facts{}, err
	}
	f := Facts{
		ID: v.get("instance-id"), Type: v.get("instance/instance-type"), Zone: v.get("zone-id"), MAC: v.get("mac"),
		VPC: v.get("vpc-id"), Subnet: v.get("vswitch-id"), VPCRange: v.get("vpc-cidr-block"),
	}
	return f, v.err
}

// azureVersion is one that all regions have.
const azureVersion = "2021-02-01"

// readAzure reads the instance as a whole.
func readAzure(ctx context.Context, s *service) (Facts, error) {
	text, err := s.ask(ctx, http.MethodGet, "/metadata/instance?api-version="+azureVersion, "Metadata", "true")
	if err != nil {
		return Facts{}, err
	}
	var answer struct {
		Compute struct {
			Location   string `json:"location"`
			ResourceID string `json:"resourceId"`
			Size       string `json:"vmSize"`
			Zone       string `json:"zone"`
		} `json:"compute"`
		Network struct {
			Interfaces []struct {
				MAC string `json:"macAddress"`
			} `json:"interface"`
		} `json:"network"`
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		return Facts{}, fmt.Errorf("the metadata are invalid: %w", err)
	}
	f := Facts{ID: AzureID(answer.Compute.ResourceID), Type: answer.Compute.Size, Zone: answer.Compute.Zone}
	if len(answer.Network.Interfaces) > 0 {
		f.MAC = azureMAC(answer.Network.Interfaces[0].MAC)
	}
	return f, nil
}

// AzureID is the ID of a machine as CiliumNodes have it: without the scheme that Kubernetes puts
// before it, and in lower case, as Azure answers now in this one and now in that.
func AzureID(id string) string { return strings.ToLower(strings.TrimPrefix(id, "azure://")) }

// azureMAC writes twelve digits in the usual form; what is none stays as it is.
func azureMAC(text string) string {
	if len(text) != 12 {
		return text
	}
	var parts []string
	for k := 0; k < len(text); k += 2 {
		parts = append(parts, text[k:k+2])
	}
	return strings.Join(parts, ":")
}

// Addresses are those at which a cloud serves metadata and credentials to any process of the
// machine.
func Addresses(cloud Cloud) []netip.Addr {
	switch cloud {
	case AWS:
		return []netip.Addr{netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("fd00:ec2::254")}
	case Azure:
		return []netip.Addr{netip.MustParseAddr("169.254.169.254")}
	case Alibaba:
		return []netip.Addr{netip.MustParseAddr("100.100.100.200")}
	}
	return nil
}
