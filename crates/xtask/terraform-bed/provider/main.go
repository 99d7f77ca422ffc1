// Command terraform-provider-aws tells the schema of Terraform's AWS provider, as schema.json beside it has it, and nothing
// else: `tofu validate` and `tofu test` with a mocked provider ask for no more. It reaches no AWS and makes nothing.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"path/filepath"

	"github.com/hashicorp/terraform-plugin-go/tfprotov5"
	"github.com/hashicorp/terraform-plugin-go/tfprotov5/tf5server"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

type attribute struct {
	Type                         json.RawMessage
	Computed, Optional, Required bool
}

type nested struct {
	Nesting  string
	Min, Max int64
	Block    block
}

type block struct {
	Attributes map[string]attribute
	Blocks     map[string]nested
}

type document struct {
	Provider        block
	Resources, Data map[string]block
}

var nestings = map[string]tfprotov5.SchemaNestedBlockNestingMode{
	"single": tfprotov5.SchemaNestedBlockNestingModeSingle,
	"list":   tfprotov5.SchemaNestedBlockNestingModeList,
	"set":    tfprotov5.SchemaNestedBlockNestingModeSet,
}

func (b block) told() *tfprotov5.SchemaBlock {
	told := &tfprotov5.SchemaBlock{}
	for name, has := range b.Attributes {
		//lint:ignore SA1019 the one way to read Terraform's own notation of types
		of, err := tftypes.ParseJSONType(has.Type)
		if err != nil {
			log.Fatalf("%s: %v", name, err)
		}
		told.Attributes = append(told.Attributes, &tfprotov5.SchemaAttribute{
			Name: name, Type: of, Computed: has.Computed, Optional: has.Optional, Required: has.Required,
		})
	}
	for name, has := range b.Blocks {
		told.BlockTypes = append(told.BlockTypes, &tfprotov5.SchemaNestedBlock{
			TypeName: name, Block: has.Block.told(), Nesting: nestings[has.Nesting], MinItems: has.Min, MaxItems: has.Max,
		})
	}
	return told
}

func all(blocks map[string]block) map[string]*tfprotov5.Schema {
	schemas := map[string]*tfprotov5.Schema{}
	for name, of := range blocks {
		schemas[name] = &tfprotov5.Schema{Block: of.told()}
	}
	return schemas
}

// server panics, which ends the run, when it is asked for what it cannot do: the interface is embedded as nil.
type server struct {
	tfprotov5.ProviderServer
	schema *tfprotov5.GetProviderSchemaResponse
}

func (s server) GetProviderSchema(context.Context, *tfprotov5.GetProviderSchemaRequest) (*tfprotov5.GetProviderSchemaResponse, error) {
	return s.schema, nil
}

func (s server) GetResourceIdentitySchemas(context.Context, *tfprotov5.GetResourceIdentitySchemasRequest) (*tfprotov5.GetResourceIdentitySchemasResponse, error) {
	return &tfprotov5.GetResourceIdentitySchemasResponse{}, nil
}

func (s server) PrepareProviderConfig(_ context.Context, r *tfprotov5.PrepareProviderConfigRequest) (*tfprotov5.PrepareProviderConfigResponse, error) {
	return &tfprotov5.PrepareProviderConfigResponse{PreparedConfig: r.Config}, nil
}

func (s server) ValidateResourceTypeConfig(context.Context, *tfprotov5.ValidateResourceTypeConfigRequest) (*tfprotov5.ValidateResourceTypeConfigResponse, error) {
	return &tfprotov5.ValidateResourceTypeConfigResponse{}, nil
}

func (s server) ValidateDataSourceConfig(context.Context, *tfprotov5.ValidateDataSourceConfigRequest) (*tfprotov5.ValidateDataSourceConfigResponse, error) {
	return &tfprotov5.ValidateDataSourceConfigResponse{}, nil
}

// UpgradeResourceState passes a state on: every one that a test reads is of this version.
func (s server) UpgradeResourceState(_ context.Context, r *tfprotov5.UpgradeResourceStateRequest) (*tfprotov5.UpgradeResourceStateResponse, error) {
	value, err := r.RawState.Unmarshal(s.schema.ResourceSchemas[r.TypeName].ValueType())
	if err != nil {
		return nil, err
	}
	state, err := tfprotov5.NewDynamicValue(s.schema.ResourceSchemas[r.TypeName].ValueType(), value)
	return &tfprotov5.UpgradeResourceStateResponse{UpgradedState: &state}, err
}

func (s server) GetFunctions(context.Context, *tfprotov5.GetFunctionsRequest) (*tfprotov5.GetFunctionsResponse, error) {
	return &tfprotov5.GetFunctionsResponse{}, nil
}

func (s server) StopProvider(context.Context, *tfprotov5.StopProviderRequest) (*tfprotov5.StopProviderResponse, error) {
	return &tfprotov5.StopProviderResponse{}, nil
}

func main() {
	program, err := os.Executable()
	if err != nil {
		log.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(program), "schema.json"))
	if err != nil {
		log.Fatal(err)
	}
	var read document
	if err := json.Unmarshal(text, &read); err != nil {
		log.Fatal(err)
	}
	schema := &tfprotov5.GetProviderSchemaResponse{
		Provider:          &tfprotov5.Schema{Block: read.Provider.told()},
		ResourceSchemas:   all(read.Resources),
		DataSourceSchemas: all(read.Data),
	}
	serve := func() tfprotov5.ProviderServer { return server{schema: schema} }
	if err := tf5server.Serve("registry.opentofu.org/hashicorp/aws", serve); err != nil {
		log.Fatal(err)
	}
}
