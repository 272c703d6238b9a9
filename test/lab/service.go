package lab

import (
	"encoding/json"
	"fmt"
	"net/netip"
)

// A Service is a service as a file writes it. Zero values are left out, so that
// the program's own defaults are tested.
type Service struct {
	Name                     string         `json:"name"`
	Namespace                string         `json:"namespace,omitempty"`
	VIPs                     []netip.Addr   `json:"vips,omitempty"`
	ExternalIPs              []netip.Addr   `json:"external_ips,omitempty"`
	LoadBalancerIPs          []netip.Addr   `json:"load_balancer_ips,omitempty"`
	SourceRanges             []netip.Prefix `json:"source_ranges,omitempty"`
	LoadBalancerSourceRanges []netip.Prefix `json:"load_balancer_source_ranges,omitempty"`
	Ports                    []Port         `json:"ports"`
	Endpoints                []Endpoint     `json:"endpoints,omitempty"`
	EndpointsFrom            string         `json:"endpoints_from,omitempty"`
	InternalTrafficPolicy    string         `json:"internal_traffic_policy,omitempty"`
	ExternalTrafficPolicy    string         `json:"external_traffic_policy,omitempty"`
	Scheduler                string         `json:"scheduler,omitempty"`
	HashOn                   string         `json:"hash_on,omitempty"`
	SessionAffinity          string         `json:"session_affinity,omitempty"`
	SessionAffinityTimeout   string         `json:"session_affinity_timeout,omitempty"`
	TrafficDistribution      string         `json:"traffic_distribution,omitempty"`
	Masquerade               string         `json:"masquerade,omitempty"`
	NodePortAddresses        []string       `json:"node_port_addresses,omitempty"`
	HealthCheckNodePort      uint16         `json:"health_check_node_port,omitempty"`
	PublishNotReady          bool           `json:"publish_not_ready,omitempty"`

	HealthCheck      map[string]any `json:"health_check,omitempty"`
	MinUp            int            `json:"min_up,omitempty"`
	Announce         []string       `json:"announce,omitempty"`
	CloseConnections string         `json:"close_connections,omitempty"`
}

// A Port is a port of a Service.
type Port struct {
	Name       string `json:"name,omitempty"`
	Protocol   string `json:"protocol,omitempty"`
	Port       uint16 `json:"port"`
	TargetPort uint16 `json:"target_port,omitempty"`
	NodePort   uint16 `json:"node_port,omitempty"`
}

// An Endpoint is an endpoint of a Service. A nil pointer is a key left out.
type Endpoint struct {
	Address     netip.Addr        `json:"address"`
	Ports       map[string]uint16 `json:"ports,omitempty"`
	Node        string            `json:"node,omitempty"`
	Zone        string            `json:"zone,omitempty"`
	Weight      *uint16           `json:"weight,omitempty"`
	Ready       *bool             `json:"ready,omitempty"`
	Serving     *bool             `json:"serving,omitempty"`
	Terminating *bool             `json:"terminating,omitempty"`
	Tier        int               `json:"tier,omitempty"`
	Enabled     *bool             `json:"enabled,omitempty"`
}

// File returns a service file in JSON.
func File(services ...Service) (string, error) {
	text, err := json.MarshalIndent(map[string][]Service{"services": services}, "", "  ")
	if err != nil {
		return "", fmt.Errorf("writing a service file: %w", err)
	}
	return string(text), nil
}
